"""A program with NVIDIA's own Python packages, unmodified, that does what it is told: one JSON request a line on standard input, one JSON
answer a line on standard output. Amounts are bytes. Knows nothing of kube-vram.

  {"do": "open", "gpu": N}      cuInit, a primary context on device N, nvmlInit
  {"do": "report"}              what CUDA and NVML say of the device
  {"do": "alloc", "bytes": N, "how": "linear"|"async"|"vmm"}   {"status": "CUDA_SUCCESS", "id": N}
  {"do": "free", "id": N}
  {"do": "child", "request": {...}}   the same in a child process, which the first such request starts
"""
import json
import os
import subprocess
import sys

import pynvml
from cuda.bindings import driver

GRANULE = 2 << 20  # of VMM


def must(result):
    """The value of a call that may not fail."""
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the driver answered {status.name}")
    return values[0] if len(values) == 1 else tuple(values)


def uuid_text(raw):
    digits = bytes(raw).hex()
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


class Linear:
    @staticmethod
    def take(_device, size):
        return driver.cuMemAlloc(size)

    @staticmethod
    def give(pointer, _size):
        must(driver.cuMemFree(pointer))


class Async:
    @staticmethod
    def take(_device, size):
        return driver.cuMemAllocAsync(size, driver.CUstream(0))

    @staticmethod
    def give(pointer, _size):
        must(driver.cuMemFreeAsync(pointer, driver.CUstream(0)))
        must(driver.cuStreamSynchronize(driver.CUstream(0)))


class Vmm:
    """cuMemCreate, mapped, the handle released at once: the mapping keeps the memory."""

    @staticmethod
    def take(device, size):
        wanted = driver.CUmemAllocationProp()
        wanted.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        wanted.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        wanted.location.id = int(device)
        status, handle = driver.cuMemCreate(size, wanted, 0)
        if status != driver.CUresult.CUDA_SUCCESS:
            return status, None
        address = must(driver.cuMemAddressReserve(size, GRANULE, 0, 0))
        must(driver.cuMemMap(address, size, 0, handle, 0))
        must(driver.cuMemRelease(handle))
        return status, address

    @staticmethod
    def give(address, size):
        must(driver.cuMemUnmap(address, size))
        must(driver.cuMemAddressFree(address, size))


KINDS = {"linear": Linear, "async": Async, "vmm": Vmm}


class Probe:
    def __init__(self):
        self.device = None
        self.handle = None
        self.blocks = {}
        self.other = None

    def open(self, gpu=0):
        must(driver.cuInit(0))
        self.device = must(driver.cuDeviceGet(gpu))
        must(driver.cuCtxSetCurrent(must(driver.cuDevicePrimaryCtxRetain(self.device))))
        pynvml.nvmlInit()
        self.handle = pynvml.nvmlDeviceGetHandleByUUID(uuid_text(must(driver.cuDeviceGetUuid(self.device)).bytes))
        return {"pid": os.getpid(), "cuda": driver.__file__, "nvml": pynvml.__file__}

    def report(self):
        free, total = must(driver.cuMemGetInfo())
        first = pynvml.nvmlDeviceGetMemoryInfo(self.handle)
        second = pynvml.nvmlDeviceGetMemoryInfo(self.handle, version=pynvml.nvmlMemory_v2)
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(self.handle)
        return {
            "cuda": {"devices": must(driver.cuDeviceGetCount()), "free": free, "total": total,
                     "device_total": must(driver.cuDeviceTotalMem(self.device)),
                     "uuid": uuid_text(must(driver.cuDeviceGetUuid(self.device)).bytes)},
            "nvml": {"devices": pynvml.nvmlDeviceGetCount(), "free": first.free, "total": first.total, "used": first.used,
                     "free_v2": second.free, "total_v2": second.total, "uuid": pynvml.nvmlDeviceGetUUID(self.handle),
                     "name": pynvml.nvmlDeviceGetName(self.handle), "driver": pynvml.nvmlSystemGetDriverVersion(),
                     "processes": [{"pid": p.pid, "bytes": p.usedGpuMemory} for p in processes]},
        }

    def alloc(self, bytes, how="linear"):  # noqa: A002, the request's own words
        status, block = KINDS[how].take(self.device, bytes)
        if status != driver.CUresult.CUDA_SUCCESS:
            return {"status": status.name}
        number = len(self.blocks) + 1
        self.blocks[number] = (KINDS[how], block, bytes)
        return {"status": status.name, "id": number}

    def free(self, id):  # noqa: A002
        kind, block, size = self.blocks[id]
        kind.give(block, size)
        self.blocks[id] = None
        return {}

    def child(self, request):
        if self.other is None:
            self.other = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.other.stdin.write(json.dumps(request) + "\n")
        self.other.stdin.flush()
        return json.loads(self.other.stdout.readline())

    def close(self):
        if self.other is not None:
            self.other.stdin.close()
            self.other.wait()


def main():
    probe = Probe()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(probe, request.pop("do"))(**request)
        except Exception as failure:  # told to whoever asked, in words
            answer = {"error": f"{type(failure).__name__}: {failure}"}
        print(json.dumps(answer), flush=True)
    probe.close()


if __name__ == "__main__":
    main()
