// Where the operands of a validated problem are. Pointers are to the first element, in the memory of the device that
// runs the kernel; shapes and strides stand in the problem and its geometry. "May be null" where said.
#pragma once

namespace kernd {

struct MatmulArgs {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;         // may be null; not read when beta == 0
  const void* bias = nullptr;      // may be null; [N]
  const float* a_scale = nullptr;  // may be null; as ScaleSpec says
  const float* b_scale = nullptr;  // may be null
  void* d = nullptr;               // contiguous [batch_shape..., M, N], written whole
};

struct AttentionArgs {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* mask = nullptr;  // may be null; bytes, non-zero is visible
  const void* bias = nullptr;  // may be null; dtype in the problem
  void* o = nullptr;           // contiguous, written whole
  float* lse = nullptr;        // null unless want_lse; contiguous, written whole
};

}  // namespace kernd
