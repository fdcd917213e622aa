"""What sets architectures apart (norms, biases, a head with a bias) is counted once, on every cut, and has a price."""

from hypothesis import given
from hypothesis import strategies as st

from sim.specs import ModelSpec, ParallelPlan
from sim.work.layers import deal_stages
from sim.work.sums import active_params, part_expert_params, part_params, total_params


def model(**more):
    shape = {"num_layers": 8, "hidden_size": 512, "num_heads": 8, "num_kv_heads": 4, "vocab_size": 1000}
    return ModelSpec(**{**shape, **more})


unusual = st.fixed_dictionaries(
    {
        "norm": st.sampled_from(["layernorm", "rmsnorm"]),
        "norm_bias": st.booleans(),
        "norms_per_layer": st.sampled_from([1, 2, 4]),
        "query_key_norm": st.sampled_from(["none", "head", "all"]),
        "embedding_norm": st.booleans(),
        "bias": st.booleans(),
        "qkv_bias": st.booleans(),
        "attention_output_bias": st.booleans(),
        "mlp_bias": st.booleans(),
        "head_bias": st.booleans(),
        "gated_mlp": st.booleans(),
        "tied_embeddings": st.booleans(),
        "position": st.sampled_from(["learned", "rotary", "none"]),
    }
)


mixture = st.fixed_dictionaries(
    {
        "num_experts": st.sampled_from([2, 4, 8]),
        "experts_per_token": st.integers(1, 2),
        "expert_intermediate_size": st.sampled_from([64, 96, 512]),
        "shared_expert_intermediate_size": st.sampled_from([64, 128]),
        "shared_expert_gate": st.booleans(),
        "num_dense_layers": st.integers(0, 2),
    }
) | st.just({})
latent = st.fixed_dictionaries(
    {
        "num_kv_heads": st.just(8),
        "key_value_rank": st.sampled_from([16, 128]),
        "query_rank": st.sampled_from([0, 32]),
        "rotary_head_dim": st.sampled_from([0, 16]),
        "value_head_dim": st.sampled_from([32, 96]),
        "query_key_norm": st.just("none"),
    }
) | st.just({})


@given(unusual, mixture, latent, st.booleans())
def test_stages_of_mixtures_hold_the_model_exactly(fields, experts, attention, sinks):
    shape = model(**{**fields, **experts, **attention, "attention_sinks": sinks})
    stages = deal_stages(shape, ParallelPlan(pp=4))
    copy = shape.vocab_size * shape.hidden_size * shape.tied_embeddings
    assert sum(part_params(stage.part, shape, 1) for stage in deal_stages(shape, ParallelPlan())) == total_params(shape)
    assert sum(part_params(stage.part, shape, 1) for stage in stages) == total_params(shape) + copy
    for stage in stages:
        # Two GPUs share the experts; each holds all the rest, and every expert is held once.
        held, experts_held = part_params(stage.part, shape, 1), part_expert_params(stage.part, shape, 1)
        assert 2 * part_params(stage.part, shape, 1, ep=2) == 2 * held - experts_held
        # Tensor parallelism cuts what is not an expert's, and of that never less than it leaves whole.
        assert (held + experts_held) / 2 <= part_params(stage.part, shape, 2) <= held
    idle = total_params(shape) - active_params(shape)
    unused = shape.num_experts - shape.experts_per_token
    experts_of_model = sum(part_expert_params(stage.part, shape, 1) for stage in stages)
    assert idle * max(shape.num_experts, 1) == experts_of_model * unused
