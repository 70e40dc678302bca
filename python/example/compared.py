"""The layers that compare.py compares, and the ways in which it makes a step."""

import torch
from torch import nn

import nsa
from nsa.module import Gate, rope_rotations, rotate


class Shared(nn.Module):
    """x [B,S,dim] -> [B,S,dim] with one key and one value for all: what stands round another attention."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.q = nn.Linear(config.dim, config.n_heads * config.d_k, bias=False)
        self.k = nn.Linear(config.dim, config.n_kv_groups * config.d_k, bias=False)
        self.v = nn.Linear(config.dim, config.n_kv_groups * config.d_v, bias=False)
        self.o = nn.Linear(config.n_heads * config.d_v, config.dim, bias=False)

    def forward(self, x, cu_seqlens=None):
        plain = self.q(x).unflatten(-1, (self.config.n_heads, -1))
        k, v = (layer(x).unflatten(-1, (self.config.n_kv_groups, -1)) for layer in (self.k, self.v))
        turned = rope_rotations(x, self.config.d_k, self.config.rope_base, 1.0, cu_seqlens)
        return self.o(self.attend(rotate(plain, *turned), rotate(k, *turned), v, self.gates(x, plain)).flatten(2))

    def gates(self, x, plain):
        return None


class Dense(Shared):
    def attend(self, q, k, v, gates):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


class SharedNsa(Shared):
    def __init__(self, config):
        super().__init__(config)
        self.gate = Gate(config.d_k, config.n_kv_groups)

    def gates(self, x, plain):
        return self.gate(plain)

    def attend(self, q, k, v, gates):
        return nsa.attention(q, k, v, gates, geometry=self.config.nsa, backend=backend_for(q))


class Mdy666(Shared):
    """flash_nsa's functions in the order of its HFNSACore, whose look at cu_seqlens (a wait for the GPU) is made once."""

    sizes = None  # that flash_nsa was last told: it keeps them in a class

    def __init__(self, config):
        super().__init__(config)
        self.combine = nn.Linear(config.dim, 3 * config.n_heads, bias=False)

    def gates(self, x, plain):
        return self.combine(x).unflatten(-1, (self.config.n_heads, 3))  # logits: their kernel has the sigmoid in it

    @torch.compiler.disable  # it launches Triton kernels from code that Dynamo cannot follow
    def attend(self, q, k, v, gates):
        import flash_nsa
        from flash_nsa.modules.hf_level_nsa import fused_sigmoid_combine

        self._tell(flash_nsa.NSAHelper, q)
        scale = q.shape[3] ** -0.5
        B, S = q.shape[:2]
        o_win = self._window(flash_nsa, q, k, v, scale)
        q, k, v, gates = (x.flatten(0, 1) for x in (q, k, v, gates))
        k_cmp, v_cmp = flash_nsa.mean_pooling(k), flash_nsa.mean_pooling(v)
        o_cmp, lse = flash_nsa.compress_attn(q, k_cmp, v_cmp, sm_scale=scale)
        blocks, _ = flash_nsa.slc_topk_indices(
            q, k_cmp, lse, sm_scale=scale, maybe_efficient_version=True, scale_slc_p=True
        )
        o_sel = flash_nsa.select_attn(q, k, v, blocks, sm_scale=scale)
        return fused_sigmoid_combine(o_cmp, o_sel, o_win, gates).unflatten(0, (B, S))

    def _tell(self, helper, q):
        sizes = (*self.config.nsa, *q.shape[:2])
        if Mdy666.sizes == sizes:
            return
        g = self.config.nsa
        helper.set_hyperparameters(g.l, g.d, g.l_sel, g.w, g.n_sel, 1, 2)
        helper.x_cu_seqlens = None
        helper.init_cu_seqlens(torch.arange(q.shape[0] + 1, dtype=torch.int32, device=q.device) * q.shape[1])
        Mdy666.sizes = sizes

    def _window(self, flash_nsa, q, k, v, scale):
        """[B*S,Hq,D]. Theirs is flash-attn's; where that is not installed, FlashAttention-2 as torch has it."""
        from flash_nsa.ops import sliding_window_attention as theirs

        if theirs.HAVE_FA3 or theirs.HAVE_FA2:
            return flash_nsa.swa_varlen_func(*(x.flatten(0, 1) for x in (q, k, v)), scale)
        S = q.shape[1]
        return torch.ops.aten._flash_attention_forward(
            q, k, v, None, None, S, S, 0.0, True, False,
            scale=scale, window_size_left=self.config.nsa.w, window_size_right=0,
        )[0].flatten(0, 1)  # fmt: skip


def backend_for(x):
    """On a GPU our kernels or an error: figures of sdpa must not stand under our name."""
    return "cuda" if x.is_cuda else "auto"


def _compiled(training, **options):
    fullgraph = not isinstance(training.model.layers[0].attention, Mdy666)
    training.loss_of = torch.compile(training.model.loss, fullgraph=fullgraph, **options)
    return training.update


def _captured(training):
    update = _compiled(training)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            update()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        update()
    training.graph = graph
    return graph.replay


def not_applicable(variant, mode, device):
    """Why this is not to be measured, or ""."""
    if variant == "mdy666" and mode == "reduce-overhead":
        return "its calls stand outside of the compiled graph, piecewise graphs between them would be no figure of its functions"
    if mode == "graph" and device == "cpu":
        return "a CPU has no CUDA graphs"
    return ""


LAYERS = {"nsa": None, "nsa-shared": SharedNsa, "dense": Dense, "mdy666": Mdy666}  # None: the model's own
NOT_APPLICABLE = {
    "fla": "flash-linear-attention's parallel_nsa wants a multiple of 16 heads a group; the model has 12 in 2 groups: 6"
}
MODES = {
    "eager": lambda training: training.update,
    "compile": _compiled,
    "graph": _captured,
    "reduce-overhead": lambda training: _compiled(training, mode="reduce-overhead"),
}
