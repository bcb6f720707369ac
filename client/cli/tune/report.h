// What `kernctl tune` has learned, for people and as JSON.
#pragma once

#include <string>
#include <vector>

#include "client/cli/context.h"
#include "kernd/client/autotune.h"

namespace kernd::cli {

// A shape with what became of its kernels.
struct TunedShape {
  client::AutotuneProgress shape;  // kShape; before that only its name
  std::vector<client::AutotuneProgress> kernels;
};

// Of the messages of a tuning.
class TuneReport {
 public:
  void Add(const client::AutotuneProgress& progress);
  const std::vector<TunedShape>& shapes() const { return shapes_; }
  // A table for each shape, or JSON with --json.
  void Print(const Context& context) const;

 private:
  std::vector<TunedShape> shapes_;
};

}  // namespace kernd::cli
