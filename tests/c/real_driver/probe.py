# SPDX-License-Identifier: Apache-2.0
"""Asks the driver's libraries that the loader finds one question, and prints the answer.

A program of its own: the question comes on standard input. Both are JSON.
"""

from __future__ import annotations

import ctypes
import importlib
import inspect
import json
import sys
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any

UNTOUCHED = 7
CUDA_CODES, NVML_CODES = range(1001), range(1001)
#: What cudart is asked for; some are the interposer's, some are not, and one is nobody's.
ENTRY_POINTS = ("cuMemAlloc", "cuMemGetInfo", "cuLaunchKernel", "cuCtxGetCurrent", "cuNoSuchThing")
EXPORT_TABLES = (bytes(16), bytes(range(16)))


def address(library: ctypes.CDLL, name: str) -> int | None:
    try:
        return ctypes.cast(getattr(library, name), c_void_p).value
    except AttributeError:
        return None


def symbols(library: str, names: list[str]) -> list[list[str]]:
    """Those of `names` that dlsym finds with a handle, and with RTLD_DEFAULT."""
    places = [ctypes.CDLL(library, ctypes.RTLD_GLOBAL), ctypes.CDLL(None)]
    return [[name for name in names if address(place, name)] for place in places]


def aliases(names: list[str], own: list[str]) -> dict[int, str]:
    """The first name of each address, in the library and, but for `own`, in what is behind it."""
    library = ctypes.CDLL("libcuda.so.1")
    handles = [ctypes.CDLL(path) for path in libraries_loaded()]
    return {
        found: name
        for name in sorted(names, reverse=True)
        for handle in ([library] if name in own else handles)
        if (found := address(handle, name))
    }


def libraries_loaded() -> list[str]:
    paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    return [path for path in sorted(paths) if "libcuda.so" in path]


def lookups(
    names: list[str], versions: list[int], known: list[str], own: list[str]
) -> dict[str, list[Any]]:
    """Each answer, with the first of the versions for which it is given."""
    library = ctypes.CDLL("libcuda.so.1")
    at = aliases(known, own)
    forms = [form for form in ("cuGetProcAddress", "cuGetProcAddress_v2") if address(library, form)]
    answers = {}
    for form in forms:
        function = getattr(library, form)
        function.argtypes = (c_char_p, c_void_p, c_int, c_uint64, c_void_p)
        for name in names:
            for flags in (0, 1, 2, 3, 4):
                rows: list[Any] = []
                for version in versions:
                    found, status = c_void_p(UNTOUCHED), c_int(-1)
                    result = function(name.encode(), byref(found), version, flags, byref(status))
                    answer = [result, at.get(found.value or 0, found.value), status.value]
                    if not rows or rows[-1][1:] != answer:
                        rows.append([version, *answer])
                answers[f"{form} {name} {flags}"] = rows
    return answers


def calls() -> dict[str, Any]:
    """What is answered before and after a cuInit that finds no card."""
    library = ctypes.CDLL("libcuda.so.1")
    said = {}
    for when in ("before", "after"):
        pointer, number = c_void_p(UNTOUCHED), c_int(-1)
        free, total = c_size_t(), c_size_t()
        said[when] = {
            "cuMemGetInfo_v2": library.cuMemGetInfo_v2(byref(free), byref(total)),
            "cuMemGetInfo_v2, null": library.cuMemGetInfo_v2(None, None),
            "cuDeviceGetCount": library.cuDeviceGetCount(byref(number)),
            "cuDeviceGet": library.cuDeviceGet(byref(number), 0),
            "cuCtxGetCurrent": library.cuCtxGetCurrent(byref(pointer)),
            "cuMemAlloc_v2": library.cuMemAlloc_v2(byref(pointer), c_size_t(1)),
            "cuDriverGetVersion": library.cuDriverGetVersion(byref(number)),
            "version": number.value,
            "cuGetExportTable": [export_table(library, each) for each in EXPORT_TABLES],
        }
        said["cuInit"] = library.cuInit(0)
    said["flags"] = library.cuInit(1)
    return said


def export_table(library: ctypes.CDLL, uuid: bytes) -> list[int | None]:
    """The status for a table that nobody has."""
    table = c_void_p(UNTOUCHED)
    return [library.cuGetExportTable(byref(table), uuid), table.value]


def errors() -> dict[str, list[Any]]:
    library = ctypes.CDLL("libcuda.so.1")
    said = {}
    for code in CUDA_CODES:
        for form in ("cuGetErrorName", "cuGetErrorString"):
            text = c_char_p(b"")
            result = getattr(library, form)(code, byref(text))
            said[f"{form} {code}"] = [result, text.value and text.value.decode()]
    return said


def nvml() -> dict[str, Any]:
    library = ctypes.CDLL("libnvidia-ml.so.1")
    library.nvmlErrorString.restype = c_char_p
    said: dict[str, Any] = {}
    for when in ("before", "after"):
        text, number = ctypes.create_string_buffer(80), c_int(-1)
        handle = c_void_p()
        said[when] = {
            "nvmlShutdown": library.nvmlShutdown(),
            "nvmlSystemGetNVMLVersion": library.nvmlSystemGetNVMLVersion(text, 80),
            "nvmlSystemGetDriverVersion": library.nvmlSystemGetDriverVersion(text, 80),
            "nvmlSystemGetCudaDriverVersion": library.nvmlSystemGetCudaDriverVersion(byref(number)),
            "nvmlDeviceGetCount_v2": library.nvmlDeviceGetCount_v2(byref(number)),
            "nvmlDeviceGetHandleByIndex_v2": library.nvmlDeviceGetHandleByIndex_v2(
                0, byref(handle)
            ),
        }
        said["init"] = [
            library.nvmlInit(),
            library.nvmlInit_v2(),
            *map(library.nvmlInitWithFlags, (0, 1, 2)),
        ]
    said["errors"] = [library.nvmlErrorString(code).decode() for code in NVML_CODES]
    return said


def runtime(path: str, known: list[str]) -> dict[str, Any]:
    """What NVIDIA's runtime library answers, which finds the driver by itself."""
    library = ctypes.CDLL(path)
    # A static one is linked into a library that has its functions under other names.
    prefix = "" if address(library, "cudaMalloc") else "static_"
    pointer, number, size = c_void_p(), c_int(-1), c_size_t()
    calls: dict[str, tuple[Any, ...]] = {
        "cudaRuntimeGetVersion": (byref(number),),
        "cudaDriverGetVersion": (byref(number),),
        "cudaGetDeviceCount": (byref(number),),
        "cudaGetDevice": (byref(number),),
        "cudaSetDevice": (0,),
        "cudaFree": (None,),
        "cudaMalloc": (byref(pointer), c_size_t(1)),
        "cudaMallocManaged": (byref(pointer), c_size_t(1), 1),
        "cudaMallocHost": (byref(pointer), c_size_t(1)),
        "cudaMallocAsync": (byref(pointer), c_size_t(1), None),
        "cudaMemGetInfo": (byref(size), byref(size)),
        "cudaStreamCreate": (byref(pointer),),
        "cudaEventCreate": (byref(pointer),),
        "cudaDeviceSynchronize": (),
        "cudaDeviceReset": (),
        "cudaGetLastError": (),
    }
    said: dict[str, Any] = {
        name: [library[prefix + name](*arguments), number.value]
        for name, arguments in calls.items()
    }
    at = aliases(known, [])
    for name in ENTRY_POINTS:
        found, status = c_void_p(), c_int(-1)
        if address(library, f"{prefix}cudaGetDriverEntryPointByVersion"):
            result = library[f"{prefix}cudaGetDriverEntryPointByVersion"](
                name.encode(), byref(found), 11080, c_uint64(0), byref(status)
            )
        else:
            result = library.cudaGetDriverEntryPoint(
                name.encode(), byref(found), c_uint64(0), byref(status)
            )
        said[name] = [result, at.get(found.value or 0, found.value), status.value]
    return said


def bindings(known: list[str]) -> dict[str, Any]:
    """What cuda-bindings answers."""
    driver = importlib.import_module("cuda.bindings.driver")
    calls = {
        "cuInit": (0,),
        "cuDriverGetVersion": (),
        "cuDeviceGetCount": (),
        "cuCtxGetCurrent": (),
        "cuMemGetInfo": (),
        "cuMemAlloc": (1,),
        "cuMemAllocManaged": (1, 1),
        "cuCtxSynchronize": (),
        "cuKernelGetLibrary": (0,),
    }
    said: dict[str, Any] = {}
    for name, arguments in calls.items():
        try:
            said[name] = [int(part) for part in getattr(driver, name)(*arguments)]
        except (RuntimeError, TypeError) as error:
            said[name] = f"{type(error).__name__}: {error}"
    if address(ctypes.CDLL("libcuda.so.1"), "cuGetProcAddress_v2"):  # the form that it calls
        at = aliases(known, [])
        for name in known:
            result, found, status = driver.cuGetProcAddress(name.encode(), 13000, 0)
            said[f"look-up of {name}"] = [int(result), at.get(found, found), int(status)]
    return said


def bindings_of_nvml() -> dict[str, Any]:
    """What pynvml makes of each function, which it looks up by its name when it is called."""
    pynvml = importlib.import_module("pynvml")
    said: dict[str, Any] = {}
    functions = (each for each in vars(pynvml).items() if each[0].startswith("nvml"))
    for name, function in functions:
        if not inspect.isfunction(function):
            continue
        required = [
            each
            for each in inspect.signature(function).parameters.values()
            if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
        ]
        try:
            said[name] = repr(function(*([0] * len(required))))
        except Exception as error:  # noqa: BLE001 - whatever the arguments do to it
            said[name] = f"{type(error).__name__}: {error}"
    return said


QUESTIONS = {
    each.__name__: each
    for each in (symbols, lookups, calls, errors, nvml, runtime, bindings, bindings_of_nvml)
}

if __name__ == "__main__":
    name, *arguments = json.load(sys.stdin)
    json.dump(QUESTIONS[name](*arguments), sys.stdout)
