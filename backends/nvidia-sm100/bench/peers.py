#!/usr/bin/env python3
"""Times public kernels on the shapes of `deepinfer bench ops`, and joins both into one table of ratios.

    python3 peers.py --ours ops.json --wheels WHEELS --json peers.json

It needs torch with CUDA. Wheels of sgl-flash-mla 1.0.0, sgl-deep-gemm 0.1.4 and apache-tvm-ffi 0.1.11 are optional: files or
unpacked packages in one folder, since the machine may have no network. A library that is not there, or that refuses a shape,
is a line that says so.

As `bench ops` does it: arguments are random numbers in several places, so that more than twice the L2 lies between two uses;
calls are captured as CUDA graphs of at least two milliseconds; the median of at least twenty samples counts. Results are not
looked at. Peers quantise in blocks of 128, the model in blocks of 32: their work is the same or less.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from fnmatch import fnmatch
from pathlib import Path

ROTATED = 160 << 20
SAMPLE_US = 2000.0
MOST_LAUNCHES = 2048
MOST_SETS = 256

HIDDEN = 5120


def fp8(*shape):
    import torch

    return torch.randn(shape, device="cuda").to(torch.float8_e4m3fn)


def scales(*shape):
    import torch

    return torch.rand(shape, device="cuda") + 0.5


def bf16(*shape):
    import torch

    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def bf16_matmul(m, n, k):
    import torch

    def one_set():
        x, w, out = bf16(m, k), bf16(n, k), torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        return lambda: torch.mm(x, w.t(), out=out)

    return one_set, 2 * (m * k + n * k + m * n)


def cublaslt_fp8(m, n, k):
    import torch
    from torch.nn.functional import ScalingType, scaled_mm

    def one_set():
        x, w = fp8(m, k), fp8(n, k)
        # Scales of x are stored column by column; those of w as (k/128, n/128) with strides (1, k/128).
        of_x, of_w = scales(k // 128, m).t(), scales(n // 128, k // 128).t()
        return lambda: scaled_mm(
            x,
            w.t(),
            of_x,
            ScalingType.BlockWise1x128,
            of_w,
            ScalingType.BlockWise128x128,
            output_dtype=torch.bfloat16,
        )

    return one_set, m * k + n * k + 2 * m * n


def deep_gemm_fp8(m, n, k):
    import deep_gemm
    import torch

    def one_set():
        x, w, out = fp8(m, k), fp8(n, k), torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        of_x, of_w = aligned(scales(m, k // 128)), scales(n // 128, k // 128)
        return lambda: deep_gemm.fp8_gemm_nt((x, of_x), (w, of_w), out)

    return one_set, m * k + n * k + 2 * m * n


def aligned(of_rows):
    """Scales of rows as DeepGEMM wants them, so that no launch of its own turns them."""
    import deep_gemm

    turn = getattr(deep_gemm, "get_mn_major_tma_aligned_tensor", None)
    return turn(of_rows) if turn else of_rows


def deep_gemm_grouped(experts, n, k, rows):
    import deep_gemm
    import torch

    room = 64

    def one_set():
        x, w = fp8(experts, room, k), fp8(experts, n, k)
        of_x, of_w = aligned(scales(experts, room, k // 128)), scales(experts, n // 128, k // 128)
        out = torch.empty(experts, room, n, device="cuda", dtype=torch.bfloat16)
        count = torch.full((experts,), rows, device="cuda", dtype=torch.int32)
        return lambda: deep_gemm.fp8_m_grouped_gemm_nt_masked((x, of_x), (w, of_w), out, count, rows)

    return one_set, experts * n * k


def deep_gemm_mhc(m):
    import deep_gemm
    import torch

    k = 4 * HIDDEN

    def one_set():
        x, w = bf16(m, k), torch.randn(24, k, device="cuda")
        out, squares = torch.empty(m, 24, device="cuda"), torch.empty(m, device="cuda")
        return lambda: deep_gemm.tf32_hc_prenorm_gemm(x, w, out, squares)

    return one_set, 2 * m * k + 4 * 24 * k


def flash_mla_decode(batch, keys):
    import flash_mla
    import torch

    # Rows of DeepSeek-V4: 448 E4M3, 64 BF16 and their scales. The bytes are any finite numbers, shared by all sets, which
    # read other rows of them.
    page, row, pages = 64, 584, 16384
    sign = torch.randint(0, 2, (pages, page, 1, row), device="cuda", dtype=torch.uint8) * 128
    cache = torch.randint(0x20, 0x3F, (pages, page, 1, row), device="cuda", dtype=torch.uint8) | sign
    cache = cache.view(torch.float8_e4m3fn)

    def one_set():
        q, sink = bf16(batch, 1, 64, 512), torch.randn(64, device="cuda")
        part = pages * page // keys
        at = torch.arange(keys, device="cuda") * part
        chosen = (at + torch.randint(0, part, (batch, 1, keys), device="cuda")).to(torch.int32)
        plan, _ = flash_mla.get_mla_metadata()

        def call():
            return flash_mla.flash_mla_with_kvcache(
                q, cache, None, None, 512, plan, indices=chosen, attn_sink=sink, is_fp8_kvcache=True, use_legacy=True
            )

        return call

    return one_set, batch * keys * row + 2 * 2 * batch * 64 * 512


def torch_topk(rows, columns, chosen):
    import torch

    def one_set():
        values = torch.randn(rows, columns, device="cuda")
        return lambda: torch.topk(values, chosen, dim=-1, sorted=False)

    return one_set, 4 * rows * columns


def torch_argmax(rows, columns):
    import torch

    def one_set():
        values = torch.randn(rows, columns, device="cuda")
        return lambda: torch.argmax(values, dim=-1)

    return one_set, 4 * rows * columns


def torch_rms_norm(rows, width):
    import torch

    def one_set():
        x, weight = bf16(rows, width), bf16(width)
        return lambda: torch.nn.functional.rms_norm(x, (width,), weight, 1e-20)

    return one_set, 4 * rows * width


def torch_copy(size):
    import torch

    def one_set():
        source = torch.randint(0, 255, (size,), device="cuda", dtype=torch.uint8)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    return one_set, 2 * size


def peers():
    """Library, name of the case of `bench ops`, and what makes the peer."""
    yield "torch copy", "copy", lambda: torch_copy(2 << 30)
    for m in (1, 8, 16, 32, 64, 4096):
        case = f"linear/fp8 n5120 k5120 m{m}"
        yield "DeepGEMM", case, lambda m=m: deep_gemm_fp8(m, 5120, 5120)
        if m >= 16:
            yield "cuBLASLt", case, lambda m=m: cublaslt_fp8(m, 5120, 5120)
    for n, k in ((32768, 1280), (5120, 8192)):
        for m in (1, 64, 4096):
            yield "DeepGEMM", f"linear/fp8 n{n} k{k} m{m}", lambda n=n, k=k, m=m: deep_gemm_fp8(m, n, k)
            if m >= 16:
                yield "cuBLASLt", f"linear/fp8 n{n} k{k} m{m}", lambda n=n, k=k, m=m: cublaslt_fp8(m, n, k)
    for m in (1, 64, 4096):
        yield "torch.mm", f"linear/bf16 n5120 k5120 m{m}", lambda m=m: bf16_matmul(m, 5120, 5120)
    for m in (1, 64):
        yield "torch.mm (bf16 out)", f"linear/head bf16 n129280 k5120 m{m}", lambda m=m: bf16_matmul(m, 129280, 5120)
    for m in (1, 64, 4096):
        yield "DeepGEMM tf32", f"linear/mhc f32 n24 k20480 m{m}", lambda m=m: deep_gemm_mhc(m)
    for rows in (1, 8, 64):
        case = f"grouped_linear/fp4 experts32 n4096 k5120 rows{rows}"
        yield "DeepGEMM FP8", case, lambda rows=rows: deep_gemm_grouped(32, 4096, 5120, rows)
    for keys in (640, 2176):
        for batch in (1, 16, 128):
            case = f"sparse_attention/b{batch} h64 d512 k{keys}"
            yield "FlashMLA", case, lambda batch=batch, keys=keys: flash_mla_decode(batch, keys)
    for rows, columns in ((1, 65536), (64, 65536), (64, 16384), (2048, 16384)):
        case = f"topk_select/512 of {rows}x{columns}"
        yield "torch.topk", case, lambda rows=rows, columns=columns: torch_topk(rows, columns, 512)
    yield "torch.argmax", "fused_sample/greedy 256x129280", lambda: torch_argmax(256, 129280)
    yield "torch rms_norm", "rms_norm/bf16 n5120 rows16384", lambda: torch_rms_norm(16384, 5120)


def timed(make, samples):
    """Median microseconds of one call, and the sets that it took in turn."""
    import torch

    one_set, moved = make()
    count = max(1, min(MOST_SETS, -(-ROTATED // moved) + 1))
    sets = [one_set() for _ in range(count)]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for call in sets:
            call()
    side.synchronize()

    def graph_of(launches):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for number in range(launches):
                sets[number % count]()
        return graph

    def clock(graph, replays):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(replays):
            graph.replay()
        torch.cuda.synchronize()
        return (time.perf_counter() - begun) * 1e6

    launches, graph = count, graph_of(count)
    for _ in range(2):
        clock(graph, 1)
        each = clock(graph, 1) / launches
        more = -(-int(min(SAMPLE_US / each, MOST_LAUNCHES)) // count) * count
        if more <= launches:
            break
        launches = more
        graph = graph_of(launches)
    replays = max(1, round(SAMPLE_US / clock(graph, 1)))
    clock(graph, replays)
    values = sorted(clock(graph, replays) / (replays * launches) for _ in range(samples))
    return {
        "median_us": statistics.median(values),
        "least_us": values[0],
        "tenth_us": values[round(0.1 * (samples - 1))],
        "ninetieth_us": values[round(0.9 * (samples - 1))],
        "samples": samples,
        "sets": count,
        "launches": replays * launches,
    }


def add_wheels(folder):
    """Puts wheels, or packages that were unpacked from them, on the path."""
    folder = Path(folder)
    if any(folder.glob("*.whl")):
        unpacked = Path(tempfile.mkdtemp(prefix="deepinfer-peers-"))
        for wheel in sorted(folder.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(unpacked)
        sys.path.insert(0, str(unpacked))
    sys.path.insert(0, str(folder))


def ours(path):
    """Medians of `bench ops`, by the names of its cases, and what it says of itself."""
    if not path:
        return {}, None
    report = json.loads(Path(path).read_text())
    found = {case["name"]: case["median_us"] for case in report["cases"] if "median_us" in case}
    found["copy"] = report["copy"]["median_us"]
    return found, {key: report[key] for key in ("backend", "backend_version", "device")}


def table(lines):
    head = ("case", "ours us", "peer", "peer us", "peer / ours")
    rows = [head]
    for line in lines:
        number = lambda key, form: form % line[key] if line.get(key) is not None else "-"
        why = line.get("failed")
        rows.append(
            (
                line["case"],
                number("ours_us", "%.2f"),
                line["peer"],
                number("median_us", "%.2f"),
                why if why else number("ratio", "%.2f"),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        cells = [f"{row[0]:<{widths[0]}}", f"{row[1]:>{widths[1]}}", f"{row[2]:<{widths[2]}}", f"{row[3]:>{widths[3]}}"]
        yield "  " + "  ".join(cells) + "  " + row[4]


def the_rest(number):
    """Lines of the cases from `number` on, timed by another process: a peer has broken this one's device context."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rest.json"
        command = [sys.executable, *sys.argv, "--from", str(number), "--json", str(file)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads(file.read_text())["cases"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ours", help="the JSON of deepinfer bench ops")
    parser.add_argument("--wheels", help="folder with wheels or unpacked packages")
    parser.add_argument("--peers", default="*", help="libraries, as patterns apart by commas")
    parser.add_argument("--case", default="*", help="cases, as patterns apart by commas")
    parser.add_argument("--json", help="write all figures there")
    parser.add_argument("--samples", type=int, default=21)
    parser.add_argument("--from", dest="first", type=int, default=0, help="leave out that many cases")
    parser.add_argument("--list", action="store_true", help="name the cases and time none")
    args = parser.parse_args()

    fits = lambda name, patterns: any(fnmatch(name.lower(), pattern.lower()) for pattern in patterns.split(","))
    chosen = [(peer, case, make) for peer, case, make in peers() if fits(peer, args.peers) and fits(case, args.case)]
    del chosen[: args.first]
    if not chosen:
        sys.exit(f"no peer fits --peers {args.peers} and --case {args.case}; --list names them all")
    if args.list:
        print("\n".join(f"{peer}: {case}" for peer, case, _ in chosen))
        return
    if args.wheels:
        add_wheels(args.wheels)
    os.environ.setdefault("CUDA_HOME", "/usr/local/cuda")
    try:
        import torch
    except ImportError:
        sys.exit("peers.py needs torch with CUDA, which this Python has not")
    if not torch.cuda.is_available():
        sys.exit("peers.py needs a GPU that torch can use")

    medians, backend = ours(args.ours)
    lines = []
    for number, (peer, case, make) in enumerate(chosen, args.first + 1):
        line = {"case": case, "peer": peer, "ours_us": medians.get(case)}
        try:
            line.update(timed(make, args.samples))
            if line["ours_us"]:
                line["ratio"] = line["median_us"] / line["ours_us"]
        except Exception as error:  # Whatever a library does not like is a line of the table.
            line["failed"] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
        lines.append(line)
        print(*list(table([line]))[1:], file=sys.stderr, flush=True)
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except RuntimeError:
            if number < args.first + len(chosen):
                lines.extend(the_rest(number))
            break

    name = torch.cuda.get_device_properties(0).name
    print(f"peers on {name}, torch {torch.__version__}; a ratio above 1 means that ours is faster")
    print("\n".join(table(lines)))
    if args.json:
        report = {
            "bench": "peers",
            "device": name,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "ours": backend,
            "cases": lines,
        }
        Path(args.json).write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
