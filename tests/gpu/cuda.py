"""Small CUDA programs through the driver alone; each works on the first card.

Run as a program: ``python cuda.py hold``, ``busy MIB``, ``fill`` or ``fault``. ``hold``
and ``busy`` say ``ready`` once they work, and end when their standard input does.
"""

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

MIB = 2**20
PIECE_MIB = 64
UNMAPPED = """\
.version 6.0
.target sm_50
.address_size 64
.visible .entry unmapped() {
  .reg .u64 %address;
  .reg .u32 %value;
  mov.u64 %address, 4096;
  mov.u32 %value, 1;
  st.global.u32 [%address], %value;
  ret;
}
"""
"""A kernel that writes where no memory is: XID 31, as NVIDIA's list of XIDs has it."""


@contextmanager
def running(
    words: Sequence[str], environment: Mapping[str, str] | None = None
) -> Iterator[int]:
    """Run a program that says ``ready``, until its standard input ends; its id."""
    with subprocess.Popen(
        words,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            told = process.stdout.readline()
            assert told == "ready\n", f"{words[-1]}: {told or 'ended'}"
            yield process.pid
        finally:
            process.stdin.close()


def command(*words: str) -> list[str]:
    """How one of these programs is started."""
    return [sys.executable, __file__, *words]


class Cuda:
    """A context on the first card."""

    def __init__(self) -> None:
        # NVML's order, else the first card here may be another one than there.
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        self._library = ctypes.CDLL("libcuda.so.1")
        card, self._context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(card), 0)
        self.call("cuCtxCreate_v2", ctypes.byref(self._context), 0, card)

    def call(self, name: str, *arguments: object) -> None:
        if code := self.code(name, *arguments):
            raise SystemExit(f"{name}: error {code}")

    def code(self, name: str, *arguments: object) -> int:
        return int(getattr(self._library, name)(*arguments))

    def memory_mib(self) -> tuple[int, int]:
        """Free and total memory, as a program is told."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value // MIB, total.value // MIB

    def busy(self, mib: int, ended: threading.Event) -> None:
        """Keep the card busy with so much memory."""
        room, size = ctypes.c_uint64(), ctypes.c_size_t(mib * MIB)
        self.call("cuMemAlloc_v2", ctypes.byref(room), size)
        self.call("cuMemsetD8_v2", room, ctypes.c_ubyte(0), size)
        print("ready", flush=True)
        while not ended.is_set():
            for value in range(20):
                self.call("cuMemsetD8_v2", room, ctypes.c_ubyte(value), size)
            self.call("cuCtxSynchronize")

    def fill(self) -> tuple[int, int]:
        """Allocate until the driver refuses; return the MiB and the refusal's code."""
        got = 0
        while True:
            room, size = ctypes.c_uint64(), ctypes.c_size_t(PIECE_MIB * MIB)
            if code := self.code("cuMemAlloc_v2", ctypes.byref(room), size):
                return got, code
            got += PIECE_MIB

    def fault(self) -> int:
        """Run the kernel that fails; return the code that the program is told."""
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), UNMAPPED.encode())
        self.call("cuModuleGetFunction", ctypes.byref(kernel), module, b"unmapped")
        self.call("cuLaunchKernel", kernel, *[1] * 6, 0, None, None, None)
        return self.code("cuCtxSynchronize")


def main() -> None:
    what, *numbers = sys.argv[1:]
    cuda = Cuda()
    if what == "fill":
        free, total = cuda.memory_mib()
        got, code = cuda.fill()
        print(f"free {free} MiB of {total} MiB; got {got} MiB; then error {code}")
    elif what == "fault":
        print(f"error {cuda.fault()}")
    else:
        ended = threading.Event()
        # A daemon, because a program that fails ends though its input goes on.
        threading.Thread(
            target=lambda: (sys.stdin.read(), ended.set()), daemon=True
        ).start()
        if what == "busy":
            cuda.busy(int(numbers[0]), ended)
        else:
            print("ready", flush=True)
            ended.wait()


if __name__ == "__main__":
    main()
