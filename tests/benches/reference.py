"""The PyTorch side of `cargo bench -p deepinfer-tests --bench reference`.

Loads the checkpoint given as the first argument with the reference model found in the directory given as the second, in
deployed numerics with two threads, prints "ready", and then answers each line of standard input ("prefill N" or
"decode PROMPT N") with the seconds that it took.
"""

import json
import sys
import time

import torch

checkpoint, directory, prompts = sys.argv[1:4]
sys.path.insert(0, directory)
import v41_reference as reference  # noqa: E402

torch.set_num_threads(2)
torch.set_grad_enabled(False)
model = reference.load_checkpoint(checkpoint, reference.Numerics.deploy())
ids = json.load(open(prompts))


def prefill(tokens):
    cache = model.new_cache(1)
    start = time.perf_counter()
    logits = model(torch.tensor([ids[:tokens]]), cache=cache)
    return time.perf_counter() - start, cache, logits


def decode(prompt, tokens):
    _, cache, logits = prefill(prompt)
    start = time.perf_counter()
    for _ in range(tokens):
        logits = model(logits[:, -1].argmax(-1)[:, None], cache=cache)
    return time.perf_counter() - start


print("ready", flush=True)
for line in sys.stdin:
    command, *numbers = line.split()
    numbers = [int(n) for n in numbers]
    print(prefill(*numbers)[0] if command == "prefill" else decode(*numbers), flush=True)
