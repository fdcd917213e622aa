"""Collectives of a step are those of a torch job: FSDP2, tensor and expert parallelism on 16 ranks of a fake process
group, of which this process is the first; every collective that reaches c10d, by group, kind, bytes and count."""

from collections import Counter

import pytest

from sim import build_scenario
from sim.network.placement import gpu_of_rank, members_of
from sim.traffic.exchanges import step_collectives

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed._functional_collectives import all_to_all_single_autograd  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: E402
from torch.distributed.pipelining import PipelineStage, Schedule1F1B  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

WORLD, TP, EP, MICRO_BATCHES, SIZE, LENGTH = 16, 2, 4, 2, 2, 32
H, HEADS, INNER, VOCABULARY, LAYERS = 64, 4, 96, 256, 3
EXPERTS, CHOSEN, EXPERT, SHARED = 8, 2, 48, 80

DATA = {
    "name": "small",
    "model": {
        "name": "small", "num_layers": LAYERS, "hidden_size": H, "num_heads": HEADS, "intermediate_size": INNER,
        "vocab_size": VOCABULARY, "num_experts": EXPERTS, "experts_per_token": CHOSEN,
        "expert_intermediate_size": EXPERT, "shared_expert_intermediate_size": SHARED, "num_dense_layers": 1,
        "gated_mlp": True, "position": "rotary", "norm": "rmsnorm", "bias": False, "tied_embeddings": False,
    },
    "cluster": {"name": "mine", "node": "dgx-a100-80gb", "num_nodes": 2},
    "plan": {"tp": TP, "dp": WORLD // TP, "ep": EP, "microbatch_size": SIZE, "sequence_parallel": True, "zero_stage": 3},
    "training": {"global_batch_size": SIZE * MICRO_BATCHES * WORLD // TP, "sequence_length": LENGTH, "precision": "bf16"},
    # torch keeps what it gathers for a column-parallel multiply until the backward.
    "stack": {"framework": "torchtitan", "regather_sequence": False, "gradient_precision": "fp32"},
}  # fmt: skip


class Attention(nn.Module):
    """Attention without rotation, which moves nothing between GPUs."""

    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(H, H, bias=False) for _ in range(4))

    def forward(self, x):
        """The heads of one tensor-parallel rank."""
        q, k, v = (each(x).unflatten(-1, (-1, H // HEADS)).transpose(1, 2) for each in (self.wq, self.wk, self.wv))
        context = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(context.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """A gated MLP."""

    def __init__(self, inner):
        super().__init__()
        self.w1, self.w3, self.w2 = (nn.Linear(*shape, bias=False) for shape in ((H, inner), (H, inner), (inner, H)))

    def forward(self, x):
        """Gate, product, down."""
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Experts(nn.Module):
    """The experts of one rank, and the way of tokens to them and back; routing is even."""

    def __init__(self, group):
        super().__init__()
        self.group, self.here = group, EXPERTS // EP
        self.up = nn.Parameter(torch.randn(self.here, H, 2 * EXPERT))
        self.down = nn.Parameter(torch.randn(self.here, EXPERT, H))

    def forward(self, copies):
        """Copies of tokens, laid out by expert."""
        split = [len(copies) // EP] * EP
        tokens = all_to_all_single_autograd(copies, split, split, self.group)
        tokens = tokens.unflatten(0, (EP, self.here, -1)).transpose(0, 1).flatten(1, 2)
        gate, up = torch.bmm(tokens, self.up).chunk(2, -1)
        out = torch.bmm(functional.silu(gate) * up, self.down)
        out = out.unflatten(1, (EP, -1)).transpose(0, 1).flatten(0, 2)
        return all_to_all_single_autograd(out, split, split, self.group)


class MixtureOfExperts(nn.Module):
    """Every rank routes its own part of the sequence; a shared expert is cut like any MLP."""

    def __init__(self, group):
        super().__init__()
        self.router, self.experts, self.shared = nn.Linear(H, EXPERTS, bias=False), Experts(group), Mlp(SHARED)

    def forward(self, x):
        """Routed and shared experts."""
        own = x.to_local() if isinstance(x, DTensor) else x
        weights = self.router(own.flatten(0, 1)).softmax(-1)[:, :CHOSEN]
        copies = self.experts(own.flatten(0, 1).repeat(CHOSEN, 1)).unflatten(0, (CHOSEN, -1))
        routed = (copies * weights.t().unsqueeze(-1)).sum(0).view_as(own)
        shared = self.shared(x)
        return routed + (shared.to_local() if isinstance(shared, DTensor) else shared)


class Layer(nn.Module):
    """A decoder layer."""

    def __init__(self, sparse, group):
        super().__init__()
        self.norm, self.mlp_norm, self.attention = nn.RMSNorm(H), nn.RMSNorm(H), Attention()
        self.sparse, self.mlp = sparse, MixtureOfExperts(group) if sparse else Mlp(INNER)

    def forward(self, x):
        """Attention and MLP, each on what is normed."""
        x = x + self.attention(self.norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Model(nn.Module):
    """A decoder whose first layer has no experts."""

    def __init__(self, group):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(VOCABULARY, H), nn.RMSNorm(H)
        self.layers = nn.ModuleList(Layer(number > 0, group) for number in range(LAYERS))
        self.output = nn.Linear(H, VOCABULARY, bias=False)

    def forward(self, tokens):
        """Logits."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


KINDS = {"allgather": "all_gather", "reduce_scatter": "reduce_scatter", "allreduce": "all_reduce"}


class Recorder(TorchDispatchMode):
    """Every collective: ranks of its group, kind, bytes of the full buffer."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Let DTensor take its operations apart, and look at what is left."""
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented
        result = function(*args, **(kwargs or {}))
        library, name = str(function).split(".")[:2]
        if library == "c10d":
            group = next(each for each in args if isinstance(each, torch.ScriptObject) and "ProcessGroup" in str(each))
            self._note(dist.ProcessGroup.unbox(group), name.strip("_").removesuffix("_base"), args[:2], result)
        elif library == "_c10d_functional" and "wait" not in name and "wrap" not in name:
            group = next(each for each in reversed(args) if isinstance(each, str))
            self._note(dist.distributed_c10d._resolve_process_group(group), name, args[:1], result)
        return result

    def _note(self, group, name, given, result):
        kind = next((value for key, value in KINDS.items() if name.startswith(key)), name)
        kind = kind.removesuffix("_into_tensor").removesuffix("_tensor").removesuffix("_single")
        tensors = [each for item in (*given, result) for each in _tensors(item)]
        nbytes = max(each.numel() * each.element_size() for each in tensors)
        self.seen.append((tuple(dist.get_process_group_ranks(group)), kind, nbytes))


def _tensors(item):
    if isinstance(item, torch.Tensor):
        return [item]
    return [each for part in item for each in _tensors(part)] if isinstance(item, (list, tuple)) else []


@pytest.fixture(scope="module")
def fake_ranks():
    """A process group of many ranks in one process."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD)
    yield
    dist.destroy_process_group()


def recorded(replicate, reshard):
    """Collectives of a step of the job, by the names of their groups, and the ranks of these."""
    kinds = ("replicate", "shards", "tp"), ("replicate", "expert_shards", "ep")
    sizes = (replicate, WORLD // TP // replicate, TP), (replicate, WORLD // EP // replicate, EP)
    dense, sparse = (
        init_device_mesh("cpu", size, mesh_dim_names=names) for size, names in zip(sizes, kinds, strict=True)
    )
    torch.manual_seed(0)
    model = Model(sparse["ep"].get_group())
    _tensor_parallel(model, dense["tp"])
    copies = ("replicate",) if replicate > 1 else ()
    over, over_experts = dense[(*copies, "shards")], sparse[(*copies, "expert_shards")]
    precision = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    again = {**precision, "reshard_after_forward": reshard}
    # In the order of torchtitan's apply_fsdp (torchtitan/models/llama4/infra/parallelize.py).
    fully_shard(model.embedding, mesh=over, **again)
    for layer in model.layers:
        if layer.sparse:
            # Fewer experts than shards would be padded: torchtitan then cuts each of them.
            fully_shard(layer.mlp.experts, mesh=over_experts, shard_placement_fn=lambda _: Shard(1), **again)
        fully_shard(layer, mesh=over, **again)
    fully_shard([model.norm, model.output], mesh=over, **precision, reshard_after_forward=False)
    fully_shard(model, mesh=over, **precision)
    with Recorder() as recorder:
        for _ in range(MICRO_BATCHES):
            tokens = torch.randint(VOCABULARY, (SIZE, LENGTH))
            with loss_parallel():
                functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten()).backward()
    meshes = ((dense, kinds[0]), (sparse, kinds[1]))
    names = {
        tuple(dist.get_process_group_ranks(mesh[name].get_group())): {"replicate": "between"}.get(name, name)
        for mesh, of_mesh in meshes
        for name in of_mesh
    }
    return Counter((names[ranks], *rest) for ranks, *rest in recorder.seen), names


def _tensor_parallel(model, mesh):
    """torchtitan's plan, with sequence parallelism."""
    along, whole = Shard(1), Replicate()
    gathered = PrepareModuleInput(input_layouts=(along,), desired_input_layouts=(whole,))
    parallelize_module(
        model,
        mesh,
        {
            "embedding": RowwiseParallel(input_layouts=whole, output_layouts=along),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(input_layouts=along, output_layouts=Shard(-1), use_local_output=False),
        },
    )
    for layer in model.layers:
        mlp = "mlp.shared" if layer.sparse else "mlp"
        columns = ("attention.wq", "attention.wk", "attention.wv", f"{mlp}.w1", f"{mlp}.w3")
        plan = {name: ColwiseParallel() for name in columns}
        plan |= {name: RowwiseParallel(output_layouts=along) for name in ("attention.wo", f"{mlp}.w2")}
        plan |= {"norm": SequenceParallel(), "mlp_norm": SequenceParallel(), "attention": gathered, mlp: gathered}
        parallelize_module(layer, mesh, plan)


@pytest.mark.usefixtures("fake_ranks")
@pytest.mark.parametrize(
    ("replicate", "reshard"),
    [
        pytest.param(1, True, marks=pytest.mark.thorough),
        pytest.param(1, False, marks=pytest.mark.thorough),
        (2, True),
        pytest.param(4, False, marks=pytest.mark.thorough),
    ],
)
def test_collectives_of_a_step(replicate, reshard):
    """All but sums, over the tensor-parallel group, of the gradients of norms, which DTensor makes one by one."""
    changes = [f"plan.sharding_group={WORLD // TP // replicate}", f"plan.reshard_after_forward={str(reshard).lower()}"]
    scenario = build_scenario(DATA, changes)
    ours = Counter()
    for each in step_collectives(scenario):
        assert each.count == int(each.count)
        ours[each.group, each.kind, round(each.nbytes)] += int(each.count)
    theirs, names = recorded(replicate, reshard)
    gpus = gpu_of_rank(scenario.plan, scenario.cluster)[0]
    assert all(members_of(name, scenario.plan, gpus)[0].tolist() == list(ranks) for ranks, name in names.items())
    norms = ("tp", "all_reduce", 2 * H)
    assert theirs.pop(norms) == MICRO_BATCHES * (2 * LAYERS + 1)
    assert ours == theirs


@pytest.mark.usefixtures("fake_ranks")
@pytest.mark.parametrize("reshard", [False, True])
def test_a_pipeline_keeps_what_it_gathered(reshard):
    """Four micro-batches: one reduction a step, as with ZeRO 1; and one gather where weights stay after a forward.

    Where they are dropped then, a gather a micro-batch, for they stay after a backward; and one before the first of
    these, which we leave out.
    """
    mesh = init_device_mesh("cpu", (1, WORLD), mesh_dim_names=("pp", "shards"))
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(H, H, bias=False)) for _ in range(LAYERS)))
    for module in (*layers, layers):
        fully_shard(module, mesh=mesh["shards"], reshard_after_forward=reshard)
    example, batch = torch.randn(SIZE, H), torch.randn(4 * SIZE, H)
    stage = PipelineStage(
        layers, 0, 1, torch.device("cpu"), input_args=(example,), output_args=(example,), group=mesh["pp"].get_group()
    )
    with Recorder() as recorder:
        Schedule1F1B(stage, 4, loss_fn=lambda out, _: out.sum()).step(batch, target=batch)
    gathers = 4 + 1 if reshard else 1
    assert Counter(kind for _, kind, _ in recorder.seen) == {"all_gather": gathers * LAYERS, "reduce_scatter": LAYERS}
    cut = ["plan.pp=2", "plan.dp=4", "plan.ep=2", "plan.uneven_layers=true", "training.global_batch_size=32"]
    scenario = build_scenario(DATA, [*cut, f"plan.reshard_after_forward={str(reshard).lower()}"])
    sent = Counter()
    for each in step_collectives(scenario):
        if each.group == "shards":
            sent[each.kind] += each.count * each.nbytes
    assert sent["reduce_scatter"] == 2 * sent["all_gather"] / (scenario.num_microbatches if reshard else 1)
