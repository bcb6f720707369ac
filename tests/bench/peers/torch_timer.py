"""Times torch calls as kernbench times kernels: events of the device, behind a write of twice the L2 cache."""

import statistics

import torch


class Timer:
    def __init__(self, repeat):
        self.repeat = repeat
        properties = torch.cuda.get_device_properties(0)
        self.flush = torch.empty(max(2 * properties.L2_cache_size, 64 << 20), dtype=torch.uint8, device="cuda")
        self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def once(self, call):
        self.flush.zero_()
        self.begin.record()
        call()
        self.end.record()
        self.end.synchronize()
        return self.begin.elapsed_time(self.end) * 1e-3

    def median(self, call):
        """Seconds; the first two runs do not count. None: torch does not do this call here."""
        try:
            first = [self.once(call) for _ in range(2)]
        except RuntimeError as error:
            if "out of memory" in str(error) or torch.cuda.is_available() is False:
                raise
            return None
        count = self.repeat or int(min(max(1 / max(first[-1], 1e-6), 15), 500))
        return statistics.median(self.once(call) for _ in range(count))


DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
          "f8e4m3": getattr(torch, "float8_e4m3fn", None), "i8": torch.int8}


def random(shape, dtype):
    """Normal numbers; 8-bit integers fill their range."""
    if dtype == torch.int8:
        return torch.randint(-128, 128, shape, dtype=dtype, device="cuda")
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)
