// Candidates, score, pick: the same for both operations.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernd/kernels/error.h"
#include "kernd/kernels/gpu.h"
#include "kernd/kernels/tuning.h"

namespace kernd {
namespace {

template <typename Variant>
bool Takes(const Variant& variant, DataType dtype) {
  const std::vector<DataType>& dtypes = variant.info.dtypes;
  return std::find(dtypes.begin(), dtypes.end(), dtype) != dtypes.end();
}

template <typename Variant, typename Problem, typename Geometry>
std::string WhyNot(const Variant& variant, const Problem& p, const Geometry& g, DataType dtype,
                   const DeviceInfo& device) {
  if (device.sm < variant.min_sm) return absl::StrCat("needs sm_", variant.min_sm, " and this is sm_", device.sm);
  if (!Takes(variant, dtype)) return absl::StrCat("does not take ", std::string(Name(dtype)));
  return variant.why_not(p, g, device);
}

// The variant that was measured to be the quickest, if it can still be had.
template <typename Variant, typename Problem, typename Geometry>
const Variant* Tuned(absl::Span<const Variant> variants, const Problem& p, const Geometry& g, DataType dtype,
                     const DeviceInfo& device, const TunedChoices* tuned) {
  const TunedChoice* const choice = FindTuned(tuned, p, g);
  if (choice == nullptr) return nullptr;
  const auto variant = std::find_if(variants.begin(), variants.end(), [&](const Variant& v) {
    return v.info.name == choice->kernel && !v.info.by_request && (!choice->tile || v.info.tile == choice->tile) &&
           WhyNot(v, p, g, dtype, device).empty();
  });
  return variant == variants.end() ? nullptr : &*variant;
}

bool IsMeant(const VariantInfo& info, const KernelRequest& request) {
  if (request.tile && info.tile != request.tile) return false;
  return request.name.empty() || info.name == request.name ||
         (info.tile && info.name == absl::StrCat(request.name, "_", TileText(*info.tile)));
}

// "; tiles that would do: 32x32x32, 64x64x32", of the variants with the name, or of all.
template <typename Variant, typename Problem, typename Geometry>
std::string OtherTiles(absl::Span<const Variant> variants, const Problem& p, const Geometry& g, DataType dtype,
                       const std::string& name, const DeviceInfo& device) {
  std::vector<std::string> tiles;
  for (const Variant& variant : variants) {
    if (!variant.info.tile || !IsMeant(variant.info, {.name = name, .tile = variant.info.tile})) continue;
    const std::string text = TileText(*variant.info.tile);
    if (std::find(tiles.begin(), tiles.end(), text) != tiles.end()) continue;
    if (WhyNot(variant, p, g, dtype, device).empty()) tiles.push_back(text);
  }
  return tiles.empty() ? "; no tile would do" : absl::StrCat("; tiles that would do: ", absl::StrJoin(tiles, ", "));
}

bool IsPositive(const Tile& tile) {
  return tile.m > 0 && tile.n > 0 && tile.k > 0;
}

template <typename Variant, typename Problem, typename Geometry>
absl::StatusOr<Choice<Variant>> ChooseFrom(absl::Span<const Variant> variants, std::string_view op, const Problem& p,
                                           const Geometry& g, DataType dtype, const KernelRequest& request,
                                           const DeviceInfo& device, const TunedChoices* tuned) {
  const bool forced = !request.name.empty() || request.tile.has_value();
  if (!forced && !request.untuned) {
    if (const Variant* const measured = Tuned(variants, p, g, dtype, device, tuned)) {
      return Choice<Variant>{measured, ChoiceReason::kTuned};
    }
  }
  const std::string field = absl::StrCat(std::string(op), request.name.empty() ? ".kernel.tile" : ".kernel.name");
  const std::string value = !request.name.empty() ? request.name : request.tile ? TileText(*request.tile) : "";
  Choice<Variant> best{.reason = forced ? ChoiceReason::kForced : ChoiceReason::kModel};
  double best_time = 0;
  std::string reasons;
  bool known = false;
  for (const Variant& variant : variants) {
    if (!IsMeant(variant.info, request) || (!forced && variant.info.by_request)) continue;
    known = true;
    if (!Takes(variant, dtype) && !forced) continue;  // said once, below
    if (const std::string why = WhyNot(variant, p, g, dtype, device); !why.empty()) {
      absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", variant.info.name, " ", why);
      continue;
    }
    const double time = variant.estimate(p, g, device);
    if (best.variant == nullptr || time < best_time) {
      best.variant = &variant;
      best_time = time;
    }
  }
  if (best.variant != nullptr) return best;
  if (forced) {
    std::string rule = known ? absl::StrCat("cannot run this problem: ", reasons) : "no such kernel on this device";
    if (request.tile) {
      if (!IsPositive(*request.tile)) {
        rule = "must have three sizes, all positive";
      } else if (!known) {
        rule = "no kernel has this tile";
      }
      rule += OtherTiles(variants, p, g, dtype, request.name, device);
    }
    return InvalidField(field, value, rule);
  }
  return UnsupportedField(absl::StrCat(std::string(op), ".dtype"), std::string(Name(dtype)),
                          reasons.empty() ? "no kernel on this device takes it"
                                          : absl::StrCat("no kernel on this device runs it: ", reasons));
}

}  // namespace

absl::StatusOr<Choice<AttentionVariant>> Choose(absl::Span<const AttentionVariant> variants, const AttentionProblem& p,
                                                const AttentionGeometry& g, const KernelRequest& request,
                                                const DeviceInfo& device, const TunedChoices* tuned) {
  return ChooseFrom(variants, "attention", p, g, p.q.dtype, request, device, tuned);
}

absl::StatusOr<Choice<MatmulVariant>> Choose(absl::Span<const MatmulVariant> variants, const MatmulProblem& p,
                                             const MatmulGeometry& g, const KernelRequest& request,
                                             const DeviceInfo& device, const TunedChoices* tuned) {
  return ChooseFrom(variants, "matmul", p, g, p.a.dtype, request, device, tuned);
}

}  // namespace kernd
