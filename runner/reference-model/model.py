"""A small Llama-architecture decoder in plain PyTorch, with Hugging Face tensor names."""

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, DIM, HEADS, LAYERS, HIDDEN = 260, 128, 4, 4, 256
HEAD_DIM = DIM // HEADS
ROPE_THETA, EPS, CONTEXT = 10000.0, 1e-5, 1024


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(DIM))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * self.weight


def rope_tables():
    inverse = 1.0 / ROPE_THETA ** (torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
    angles = torch.arange(CONTEXT).float()[:, None] * inverse[None]
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    half = HEAD_DIM // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(DIM, DIM, bias=False))

    def forward(self, x, cos, sin, mask, cache):
        rows, length, _ = x.shape
        q, k, v = (p(x).view(rows, length, HEADS, HEAD_DIM).transpose(1, 2)
                   for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            cache[:] = [k, v]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None and length > 1)
        return self.o_proj(out.transpose(1, 2).reshape(rows, length, DIM))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = nn.Linear(DIM, HIDDEN, bias=False)
        self.up_proj = nn.Linear(DIM, HIDDEN, bias=False)
        self.down_proj = nn.Linear(HIDDEN, DIM, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm = RMSNorm()
        self.self_attn = Attention()
        self.post_attention_layernorm = RMSNorm()
        self.mlp = MLP()

    def forward(self, x, cos, sin, mask, cache):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = RMSNorm()


class Llama(nn.Module):
    """Tied head: logits are hidden states times the embedding table."""

    def __init__(self, seed=None):
        super().__init__()
        self.model = Decoder()
        cos, sin = rope_tables()
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        if seed is not None:
            generator = torch.Generator().manual_seed(seed)
            for name, p in self.named_parameters():
                if p.dim() == 2:
                    std = 0.02 if "embed" in name else 0.05
                    if "o_proj" in name or "down_proj" in name:
                        std /= (2 * LAYERS) ** 0.5
                    p.data.normal_(0.0, std, generator=generator)

    def hidden(self, ids, positions=None, mask=None, caches=None):
        if positions is None:
            cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        else:  # (rows, length) -> (rows, 1, length, HEAD_DIM)
            cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        x = self.model.embed_tokens(ids)
        for i, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin, mask, None if caches is None else caches[i])
        return self.model.norm(x)

    def logits(self, hidden):
        return hidden @ self.model.embed_tokens.weight.T


@torch.no_grad()
def greedy(model, prompts, max_tokens, eos, stats=None):
    """Greedy completions of several prompts (lists of ids), stopped after eos.

    Prompts are left-padded; padding is masked out and positions count from each
    prompt's own start. With `stats` (a dict), per-row smallest gap between the two
    best logits and the logits at the last prompt position are recorded.
    """
    rows, longest = len(prompts), max(map(len, prompts))
    pads = torch.tensor([longest - len(p) for p in prompts])
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    keys = torch.arange(longest)
    positions = (keys[None] - pads[:, None]).clamp(min=0)
    real = keys[None] >= pads[:, None]
    if bool((pads == 0).all()):
        mask = None
    else:  # a padded query row may see itself, so that no softmax row is empty
        causal = keys[None, :] <= keys[:, None]
        mask = (causal[None] & (real[:, None, :] | torch.eye(longest, dtype=torch.bool)[None]))[:, None]
    caches = [[] for _ in range(LAYERS)]
    out = [[] for _ in range(rows)]
    done = [False] * rows
    gaps = [float("inf")] * rows
    for step in range(max_tokens):
        logits = model.logits(model.hidden(ids, positions, mask, caches)[:, -1])
        if stats is not None and step == 0:
            stats["first_logits"] = logits.clone()
        top = logits.topk(2, -1)
        for r in range(rows):
            if not done[r]:
                out[r].append(int(top.indices[r, 0]))
                gaps[r] = min(gaps[r], float(top.values[r, 0] - top.values[r, 1]))
                done[r] = out[r][-1] == eos
        if all(done):
            break
        ids = top.indices[:, :1]
        positions = positions[:, -1:] + 1
        real = torch.cat([real, torch.ones(rows, 1, dtype=torch.bool)], 1)
        mask = real[:, None, None, :]
    if stats is not None:
        stats["gaps"] = gaps
    return out
