#!/usr/bin/env python3
"""What one would write in Python in place of kernd: grpcio with torch, on the GPU where there is one, or numpy.

usage: grpcio_matmul.py PROTOSET        the messages, as protoc --descriptor_set_out wrote them

Serves kernd.v1.Compute/Matmul of F32 matrices, looks at nothing else, and prints a line "ADDRESS LIBRARY" once it can
be called. "SKIPPED: reason", with exit code 0, where something that it needs is missing.
"""

import ctypes
import pathlib
import signal
import sys
import warnings
from concurrent import futures


def skip(reason):
    print(f"SKIPPED: {reason}", flush=True)
    sys.exit(0)


try:
    import grpc
    import numpy as np
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
except ImportError as error:
    skip(f"{error.name} is not installed for {sys.executable}")
try:
    import torch
except ImportError:
    torch = None

F32 = 8  # kernd.v1.DataType


def messages(protoset):
    """The classes of MatmulRequest and MatmulReply."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(pathlib.Path(protoset).read_bytes()).file:
        pool.Add(file)
    found = [pool.FindMessageTypeByName(f"kernd.v1.{name}") for name in ("MatmulRequest", "MatmulReply")]
    if hasattr(message_factory, "GetMessageClass"):
        return [message_factory.GetMessageClass(each) for each in found]
    factory = message_factory.MessageFactory(pool)  # protobuf before 4.22
    return [factory.GetPrototype(each) for each in found]


def multiply_numpy(a, b):
    return a @ b


def multiply_torch(device):
    def multiply(a, b):
        return (torch.from_numpy(a).to(device) @ torch.from_numpy(b).to(device)).cpu().numpy()

    return multiply


def library():
    """Its name, and the product of two arrays by it."""
    if torch is None:
        return "numpy", multiply_numpy
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # it is only read
    if torch.cuda.is_available():
        torch.zeros(1).cuda()  # the context, which takes a while
        return "torch-cuda", multiply_torch("cuda")
    return "torch-cpu", multiply_torch("cpu")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: whoever started it must not leave it behind
    request_class, reply_class = messages(sys.argv[1])
    name, multiply = library()

    def array(tensor):
        return np.frombuffer(tensor.data, np.float32).reshape(tuple(tensor.shape))

    def matmul(request, _):
        d = multiply(array(request.matmul.a), array(request.matmul.b))
        reply = reply_class()
        reply.d.dtype = F32
        reply.d.shape.extend(d.shape)
        reply.d.data = d.tobytes()
        return reply

    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(futures.ThreadPoolExecutor(16), options=unlimited)
    handler = grpc.unary_unary_rpc_method_handler(matmul, request_class.FromString, reply_class.SerializeToString)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("kernd.v1.Compute", {"Matmul": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"127.0.0.1:{port} {name}", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
