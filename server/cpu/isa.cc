#include "server/cpu/isa.h"

namespace kernd::cpu {

std::vector<Isa> AvailableIsas() {
  std::vector<Isa> isas = {Isa::kBaseline};
#ifdef KERND_CPU_X86
  __builtin_cpu_init();
  const auto f16c = [] {  // not among the names that __builtin_cpu_supports knows in every compiler
    unsigned ecx = 0, eax = 1, ebx = 0, edx = 0;
    __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
    return (ecx >> 29 & 1) != 0;
  };
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c()) {
    isas.push_back(Isa::kAvx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
      isas.push_back(Isa::kAvx512);
    }
  }
#endif
  return isas;
}

Isa BestIsa() {
  static const Isa best = AvailableIsas().back();
  return best;
}

}  // namespace kernd::cpu
