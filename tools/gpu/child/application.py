# SPDX-License-Identifier: Apache-2.0
"""One application as an ordinary user starts it: python -m tools.gpu.child.application NAME [fill].

It prints an object: `total`, the memory of the card that it sees; `result`, of a small piece of
work; `refused`, what it says with `fill` when there is no more memory. What an application does not
tell is not in it. Where it is not here, it prints `missing`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

CHUNK_BYTES = 64 << 20
CHUNKS = 1 << 14  # a terabyte: more than any card has
TOKENS = [3, 5, 7, 11]
#: A model as servers read it; its weights are random, the same in each start.
MODEL = """{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
"hidden_size": 256, "intermediate_size": 512, "max_position_embeddings": 128, "vocab_size": 512,
"num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 4, "rms_norm_eps": 1e-6,
"torch_dtype": "float16"}"""
#: More tokens than any card has room for.
LONGEST = "1000000000"


def _filled(allocate: Callable[[], object]) -> str:
    """Allocate until it is refused, and return the words; nothing unless that is asked for."""
    held: list[object] = []
    if sys.argv[2:] != ["fill"]:
        return ""
    try:
        for _ in range(CHUNKS):
            held.append(allocate())  # noqa: PERF401 - what was allocated is held until then
    except Exception as error:  # noqa: BLE001 - each application has its own
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def _by_torch(result: object) -> dict[str, object]:
    torch: Any = import_module("torch")
    return {
        "total": torch.cuda.mem_get_info()[1],
        "result": result,
        "refused": _filled(lambda: torch.empty(CHUNK_BYTES, dtype=torch.uint8, device="cuda")),
    }


def pytorch(torch: Any) -> dict[str, object]:
    ramp = torch.arange(1 << 20, device="cuda", dtype=torch.float64)
    return _by_torch(float((ramp * 3).sum()))


def cupy(cupy: Any) -> dict[str, object]:
    return {
        "total": cupy.cuda.runtime.memGetInfo()[1],
        "result": float((cupy.arange(1 << 20, dtype="float64") * 3).sum()),
        "refused": _filled(lambda: cupy.empty(CHUNK_BYTES, dtype="uint8")),
    }


def numba(cuda: Any) -> dict[str, object]:
    import numpy as np  # noqa: PLC0415 - only this one needs it

    there = cuda.to_device(np.arange(1 << 20, dtype="float64") * 3)
    return {
        "total": int(cuda.current_context().get_memory_info()[1]),
        "result": float(there.copy_to_host().sum()),
        "refused": _filled(lambda: cuda.device_array(CHUNK_BYTES, dtype="uint8")),
    }


def jax(jax: Any) -> dict[str, object]:
    """It takes three quarters of the memory at its start, and tells how much that is."""
    device = jax.devices("cuda")[0]
    zeros = jax.numpy.zeros
    return {
        "total": device.memory_stats()["bytes_limit"],
        "result": float((jax.numpy.arange(1 << 20, dtype="float32") * 3).sum()),
        "refused": _filled(lambda: zeros(CHUNK_BYTES, dtype="uint8").block_until_ready()),
    }


def tensorflow(tf: Any) -> dict[str, object]:
    """It takes nearly all memory at its start, and does not tell how much that is."""
    with tf.device("/GPU:0"):
        return {
            "result": float(tf.reduce_sum(tf.range(1 << 20, dtype="float64") * 3)),
            "refused": _filled(lambda: tf.zeros([CHUNK_BYTES // 4]) + 1),
        }


def paddle(paddle: Any) -> dict[str, object]:
    ramp = paddle.arange(1 << 20, dtype="float64")
    return {
        "total": paddle.device.cuda.get_device_properties().total_memory,
        "result": float((ramp * 3).sum()),
        "refused": _filled(lambda: paddle.empty([CHUNK_BYTES], dtype="uint8")),
    }


def _model(folder: str) -> str:
    Path(folder, "config.json").write_text(MODEL)
    return folder


def vllm(vllm: Any) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        server = vllm.LLM(
            _model(folder),
            enforce_eager=True,
            gpu_memory_utilization=0.3,
            load_format="dummy",
            max_model_len=64,
            skip_tokenizer_init=True,
        )
        greedy = vllm.SamplingParams(temperature=0, max_tokens=8, detokenize=False)
        (answer,) = server.generate([{"prompt_token_ids": TOKENS}], greedy)
    return _by_torch(list(map(int, answer.outputs[0].token_ids)))


def sglang(sglang: Any) -> dict[str, object]:
    """The server is more processes. They end before this one fills the quota, which all share."""
    with tempfile.TemporaryDirectory() as folder:
        server = sglang.Engine(
            model_path=_model(folder),
            disable_cuda_graph=True,
            load_format="dummy",
            mem_fraction_static=0.3,
            skip_tokenizer_init=True,
        )
        greedy = {"temperature": 0, "max_new_tokens": 8}
        answer = server.generate(input_ids=TOKENS, sampling_params=greedy)
        server.shutdown()
    return _by_torch(list(map(int, answer["output_ids"])))


def nccl(torch: Any) -> dict[str, object]:
    if not torch.distributed.is_nccl_available():
        raise ImportError("this PyTorch has no NCCL")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, (folder,), nprocs=2)
        return _by_torch(json.loads(Path(folder, "sum").read_text()))


def _rank(rank: int, folder: str) -> None:
    """Sum what both have. NCCL takes them for two hosts: on one, each needs a card of its own."""
    lone = {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo"}
    os.environ.update(lone, NCCL_HOSTID=str(rank))
    torch: Any = import_module("torch")
    group = torch.distributed
    group.init_process_group("nccl", f"file://{folder}/meet", rank=rank, world_size=2)
    numbers = torch.arange(1 << 20, device="cuda", dtype=torch.float64) * (rank + 1)
    group.all_reduce(numbers)
    if rank == 0:
        Path(folder, "sum").write_text(json.dumps(float(numbers.sum())))
    group.destroy_process_group()


def _said(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
    return done.stdout + done.stderr


def _mebibytes(pattern: str, said: str) -> int:
    """Return the size that a program prints; ImportError where it prints none."""
    found = re.search(pattern, said)
    if found is None:
        raise ImportError(f"it prints no memory of a card: {said.strip()[-200:]}")
    return int(found[1]) << 20


def llama_cpp(_: Any) -> dict[str, object]:
    """The model in the file LLAMA_MODEL computes; without one, it lists the card alone."""
    if shutil.which("llama-cli") is None:
        raise ImportError("no llama-cli")
    said = _said("llama-cli", "--list-devices")
    answer: dict[str, object] = {"total": _mebibytes(r"CUDA0: .*\((\d+) MiB", said)}
    if model := os.environ.get("LLAMA_MODEL"):
        program = "llama-completion" if shutil.which("llama-completion") else "llama-cli"
        argv = [program, "-no-cnv", "-m", model, "-ngl", "99", "--temp", "0", "-n", "8", "-p", "a"]
        done = subprocess.run(argv, capture_output=True, check=True)
        refused = _said(*argv, "-c", LONGEST) if sys.argv[2:] == ["fill"] else ""
        line = next((line for line in refused.splitlines() if "out of memory" in line), "")
        answer |= {"result": done.stdout.decode(errors="replace"), "refused": line}
    return answer


def comfyui(_: Any) -> dict[str, object]:
    """It starts and ends, in the checkout COMFYUI. It computes by PyTorch, which has a row."""
    if not (folder := os.environ.get("COMFYUI")):
        raise ImportError("COMFYUI names no checkout")
    options = ("--quick-test-for-ci", "--disable-all-custom-nodes")
    said = _said(sys.executable, f"{folder}/main.py", *options)
    device = re.search(r"Device: .*", said)
    total = _mebibytes(r"Total VRAM (\d+) MB", said)
    return {"total": total, "result": device[0] if device else ""}


#: By name: what is imported, "" for a program, and what is done with it.
APPLICATIONS: dict[str, tuple[str, Callable[[Any], dict[str, object]]]] = {
    "PyTorch": ("torch", pytorch),
    "CuPy": ("cupy", cupy),
    "numba": ("numba.cuda", numba),
    "JAX": ("jax", jax),
    "TensorFlow": ("tensorflow", tensorflow),
    "Paddle": ("paddle", paddle),
    "vLLM": ("vllm", vllm),
    "SGLang": ("sglang", sglang),
    "llama.cpp": ("", llama_cpp),
    "ComfyUI": ("", comfyui),
    "NCCL": ("torch", nccl),
}


def main() -> None:
    module, function = APPLICATIONS[sys.argv[1]]
    try:
        answer = function(import_module(module) if module else None)
    except (ImportError, OSError) as error:
        answer = {"missing": f"not installed: {error}"}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)  # what servers still log would follow the answer


if __name__ == "__main__":
    main()
