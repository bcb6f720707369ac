"""What the service bench measures: servers, the ways to call them, and who is set beside whom."""

import dataclasses
import re

ROW_BYTES_IN, ROW_BYTES_OUT = 12, 4  # of the call, service/problem.h


@dataclasses.dataclass(frozen=True)
class Series:
    """One kind of client (service_load --mode) at one server."""

    server: str
    mode: str


@dataclasses.dataclass(frozen=True)
class Place:
    """A way in which tensors travel: kernd, and the peers of its rows, met by the same client where one can be."""

    name: str
    kernd: Series
    peers: dict


RAW, PROTO, PYTHON = "grpc-raw-echo", "grpc-proto-echo", "grpcio"  # grpcio: named after its library once it runs
TCP, TCP8, UNIX, MEMCPY = "tcp-socket", "tcp-socket-x8", "unix-socket", "memcpy"

FLOORS = {TCP: Series("socket", "socket"), TCP8: Series("socket", "socket8")}
PLACES = [
    Place("inline", Series("kernd", "stock"),
          {PROTO: Series("proto", "stock"), RAW: Series("raw", "stock"), PYTHON: Series("grpcio", "stock"), **FLOORS,
           MEMCPY: Series("none", "memcpy")}),
    Place("inline-unix", Series("kernd-unix", "stock"), {UNIX: Series("socket-unix", "socket")}),
    Place("inline-client", Series("kernd", "kernd-inline"), {RAW: Series("raw", "kernd-inline"), **FLOORS}),
    Place("striped", Series("kernd", "kernd-striped"), FLOORS),
    Place("auto", Series("kernd", "kernd-auto"), FLOORS),
    # Nothing but the request and the reply travels; operands and result are counted all the same.
    Place("shm", Series("kernd", "kernd-shared"),
          {UNIX: Series("socket-unix", "socket"), MEMCPY: Series("none", "memcpy")}),
    # A third of the operands' bytes in, as many out; the rest lies at the daemon.
    Place("resident", Series("kernd", "kernd-resident"), {}),
    Place("resident-stock", Series("kernd", "stock-resident"), {}),
]
# In an open loop both are offered the same load, a part of what the slower of them does in a closed one.
OPEN_PLACE, OPEN_PEER, OPEN_PART = "inline", RAW, 0.6

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@dataclasses.dataclass(frozen=True)
class Size:
    """Bytes of the operands, as near as whole rows come to it from below."""

    name: str
    rows: int

    @property
    def call_bytes(self):
        return self.rows * (ROW_BYTES_IN + ROW_BYTES_OUT)


def size(text):
    """Of "24MiB"."""
    match = re.fullmatch(r"([1-9]\d*)(KiB|MiB|GiB)", text)
    if not match:
        raise ValueError(f"{text!r} is no size: a whole number and KiB, MiB or GiB")
    return Size(text, int(match[1]) * UNITS[match[2]] // ROW_BYTES_IN)
