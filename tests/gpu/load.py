"""Keep the first card busy with so much memory, through the driver alone.

Run as a program: ``python load.py MIB``. It says ``ready`` once it works, and ends when
its standard input does.
"""

import ctypes
import sys
import threading

MIB = 2**20


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        code = getattr(cuda, name)(*arguments)
        if code:
            raise SystemExit(f"{name}: error {code}")

    size = int(sys.argv[1]) * MIB
    card, context, room = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(card), 0)
    call("cuCtxCreate_v2", ctypes.byref(context), 0, card)
    call("cuMemAlloc_v2", ctypes.byref(room), ctypes.c_size_t(size))
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set())).start()
    call("cuMemsetD8_v2", room, ctypes.c_ubyte(0), ctypes.c_size_t(size))
    print("ready", flush=True)
    while not ended.is_set():
        for value in range(20):
            call("cuMemsetD8_v2", room, ctypes.c_ubyte(value), ctypes.c_size_t(size))
        call("cuCtxSynchronize")


if __name__ == "__main__":
    main()
