"""Trains the reference model on CPU: two one-thread ranks, fixed seed, fixed step counts.

    python train.py --out DIR            # both phases

Every random draw depends on (SEED, phase, step, rank) only, so a run that is
interrupted and started again with the same --out continues to the same result from
the last saved step. Nothing is decided by the clock.
"""

import argparse
import json
import os
import random
import time

# glibc gives freed memory back to the kernel after each step and faults it in again
# in the next; keeping it about halves the time of a step. Set before torch is loaded
# in the ranks (they are started with this environment).
MALLOC = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 28),
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}

SEED = 20240611
RANKS = 2
TOKENS_FIRST, TOKENS_LAST = 5000, 8000   # tokens per step over all ranks, grows with the documents
LINES_FIRST, LINES_LAST = 3, 20          # curriculum: longest document
PROMOTE_ACCURACY, PROMOTE_GAP = 0.92, 15
WARM_UP, DECAY_SHARE, CLIP = 40, 0.4, 1.0
MUON_MOMENTUM, MUON_ITERATIONS = 0.95, 5
ADAM_BETAS, ADAM_EPS = (0.9, 0.95), 1e-8
LOG_EVERY, SAVE_EVERY = 10, 50
PHASES = [
    # name, steps, wide data, Muon learning rate, AdamW learning rate
    ("narrow", 1070, False, 0.02, 3e-3),
    ("wide", 400, True, 0.012, 2e-3),
]


def newton_schulz(batch):
    """Approximately orthogonalises each matrix of a batch, in fp32."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = batch / (batch.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(MUON_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


class Muon:
    """Momentum with orthogonalised updates, batched over matrices of the same shape.

    Tall matrices are handled as the transposed wide ones, so the gate, up and down
    projections share one batch.
    """

    def __init__(self, params):
        self.groups = {}
        for p in params:
            self.groups.setdefault(tuple(sorted(p.shape)), []).append(p)
        self.momentum = {shape: None for shape in self.groups}

    def step(self, lr):
        import torch
        for shape, params in self.groups.items():
            grads = torch.stack([p.grad if p.shape[0] <= p.shape[1] else p.grad.T for p in params])
            if self.momentum[shape] is None:
                self.momentum[shape] = torch.zeros_like(grads)
            m = self.momentum[shape].lerp_(grads, 1 - MUON_MOMENTUM)
            updates = newton_schulz(grads.lerp(m, MUON_MOMENTUM))
            for p, u in zip(params, updates):
                if p.shape[0] > p.shape[1]:
                    u = u.T
                p.data.add_(u, alpha=-lr * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)


def schedule(step, steps):
    warm = min(1.0, (step + 1) / WARM_UP)
    decay = min(1.0, (steps - step) / (DECAY_SHARE * steps))
    return warm * decay


def batch(phase_index, wide, step, rank, longest):
    """This rank's rows of one step: ids, next-token targets, loss flags."""
    import torch
    import data
    rng = random.Random("train/%d/%d/%d/%d" % (SEED, phase_index, step, rank))
    share = (longest - LINES_FIRST) / (LINES_LAST - LINES_FIRST)
    budget = int(TOKENS_FIRST + share * (TOKENS_LAST - TOKENS_FIRST)) // RANKS
    # Rows of similar length keep padding low: one line count per rank and step,
    # half of the time the longest, else uniform.
    lines = longest if rng.random() < 0.5 else rng.randint(2, longest)
    rows, used = [], 0
    while used < budget:
        rows.append(data.training_row(rng, lines, wide))
        used += len(rows[-1][0])
    width = max(len(t) for t, _ in rows)
    ids = torch.full((len(rows), width), data.PAD)
    flags = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, (tokens, marks) in enumerate(rows):
        ids[i, : len(tokens)] = torch.tensor(tokens)
        flags[i, : len(tokens)] = torch.tensor(marks, dtype=torch.bool)
    return ids[:, :-1], ids[:, 1:], flags[:, 1:], used


def worker(rank, out, rendezvous):
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from model import Llama

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=RANKS)
    model = Llama(seed=SEED)
    params = list(model.parameters())
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
    rest = [p for n, p in model.named_parameters() if p.dim() != 2 or "embed" in n]

    def optimisers():
        return Muon(matrices), torch.optim.AdamW(rest, lr=1.0, betas=ADAM_BETAS, eps=ADAM_EPS, weight_decay=0.0)

    muon, adam = optimisers()
    state = {"phase": 0, "step": 0, "longest": LINES_FIRST, "promoted": 0, "accuracy": 0.0, "seconds": 0.0}
    path = os.path.join(out, "state.pt")
    if os.path.exists(path):
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        state = saved["state"]
        muon.momentum = saved["muon"]
        adam.load_state_dict(saved["adam"])
    began = time.time() - state["seconds"]
    log = open(os.path.join(out, "training-log.jsonl"), "a") if rank == 0 else None

    def save():
        state["seconds"] = time.time() - began
        if rank == 0:
            torch.save({"model": model.state_dict(), "state": state, "muon": muon.momentum,
                        "adam": adam.state_dict()}, path + ".tmp")
            os.replace(path + ".tmp", path)

    while state["phase"] < len(PHASES):
        name, steps, wide, muon_lr, adam_lr = PHASES[state["phase"]]
        while state["step"] < steps:
            step = state["step"]
            ids, targets, flags, used = batch(state["phase"], wide, step, rank, state["longest"])
            hidden = model.hidden(ids)[flags]
            logits = model.logits(hidden)
            wanted = targets[flags]
            loss = F.cross_entropy(logits, wanted, reduction="sum")
            for p in params:
                p.grad = None
            loss.backward()
            right = (logits.argmax(-1) == wanted).sum()
            flat = torch.cat([p.grad.reshape(-1) for p in params]
                             + [torch.tensor([loss.item(), float(right), float(len(wanted)), float(used)])])
            dist.all_reduce(flat)
            loss_sum, right_sum, count, used_sum = flat[-4:].tolist()
            flat = flat[:-4] / count
            norm = float(flat.norm())
            if norm > CLIP:
                flat *= CLIP / norm
            offset = 0
            for p in params:
                p.grad = flat[offset: offset + p.numel()].view_as(p)
                offset += p.numel()
            scale = schedule(step, steps)
            muon.step(muon_lr * scale)
            for group in adam.param_groups:
                group["lr"] = adam_lr * scale
            adam.step()

            accuracy = right_sum / count
            state["accuracy"] = 0.7 * state["accuracy"] + 0.3 * accuracy
            if log and (step % LOG_EVERY == 0 or step == steps - 1):
                log.write(json.dumps({
                    "phase": name, "step": step, "loss": round(loss_sum / count, 4),
                    "accuracy": round(accuracy, 4), "longest": state["longest"], "tokens": int(used_sum),
                    "grad_norm": round(norm, 3), "lr_scale": round(scale, 4),
                    "seconds": round(time.time() - began, 1)}) + "\n")
                log.flush()
            if (state["accuracy"] > PROMOTE_ACCURACY and step - state["promoted"] >= PROMOTE_GAP
                    and state["longest"] < LINES_LAST):
                state["longest"] = min(LINES_LAST, state["longest"] + (1 if state["longest"] < 8 else 2))
                state["promoted"] = step
            state["step"] = step + 1
            if state["step"] % SAVE_EVERY == 0:
                save()
        if rank == 0:
            torch.save(model.state_dict(), os.path.join(out, "model-%s.pt" % name))
        state["phase"] += 1
        state["step"], state["promoted"] = 0, 0
        muon, adam = optimisers()
        save()
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True, help="folder for checkpoints and the log")
    out = os.path.abspath(parser.parse_args().out)
    os.makedirs(out, exist_ok=True)
    os.environ.update(MALLOC)
    import torch.multiprocessing as mp
    rendezvous = os.path.join(out, "rendezvous")
    if os.path.exists(rendezvous):
        os.remove(rendezvous)
    mp.start_processes(worker, args=(out, rendezvous), nprocs=RANKS, start_method="spawn")


if __name__ == "__main__":
    main()
