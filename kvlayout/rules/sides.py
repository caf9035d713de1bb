"""KVL20x and KVL5xx: sides that no engine can load, and pairs of sides that do not convert."""

from __future__ import annotations

from kvlayout.rules.rule import Rule

__all__ = ["TABLE"]

TABLE: tuple[Rule, ...] = (
    Rule(
        "KVL200",
        "a format that an engine family has no page for",
        "Name a format that the family stores, or describe the group's page in an inline page.",
        "A family's rules say which bytes its engines keep in the place of a format; where they say nothing, a guess "
        "would move wrong ones.",
    ),
    Rule(
        "KVL201",
        "more ranks than units of an axis that is never replicated",
        "Choose a tp that divides the axis.",
        "The format says that ranks do not share a unit of this axis (few: refuse), so some ranks would hold none.",
    ),
    Rule(
        "KVL202",
        "an axis that cannot be shared out equally",
        "Choose a tp that divides the axis, or, where units are replicated, one that the axis divides.",
        "All ranks of an engine have pages of one size, so shares are equal or do not exist.",
    ),
    Rule(
        "KVL203",
        "a dcp that does not divide tp",
        "Choose a dcp that divides tp.",
        "Decode context parallelism takes its ranks from the tensor-parallel group: cp rank = pcp_rank * dcp + "
        "tp_rank % dcp.",
    ),
    Rule(
        "KVL204",
        "an interleave that does not divide a block into runs",
        "Choose an interleave that divides the block, or a block that is a multiple of it.",
        "Ranks take turns at runs of so many tokens; a run that ends inside a block leaves the blocks of the ranks "
        "unequal.",
    ),
    Rule(
        "KVL205",
        "pipeline stages that are not the layers of the model",
        "Give stages that add up to the model's layers, none of them empty.",
        "A layer without a stage is held by nobody; a stage without a layer is no stage.",
    ),
    Rule(
        "KVL206",
        "a page cannot have the size that the engine names",
        "Give at least the bytes that the page needs, and none for a page in several buffers.",
        "The engine's 'page' adds one pad at the end; it never cuts, and several buffers have several ends.",
    ),
    Rule(
        "KVL207",
        "no rank holds some part of a field",
        "Choose parallel sizes under which every share of one axis meets every share of the other: for heads and "
        "tokens, more ranks than heads.",
        "Ranks of the tensor-parallel group serve both ways of sharing; where they deal out tokens among ranks with "
        "other heads, some tokens of a head are on no rank.",
    ),
    Rule(
        "KVL208",
        "a block that is not made of kernel blocks",
        "Choose a kernel_block that divides the block, or none; none for a padded page, and for a page of which a part "
        "does not grow with the tokens.",
        "Kernels find a tile at a multiple of its bytes from where the block begins; a pad, a field beside the tiles "
        "or a broken tile would be read as tokens.",
    ),
    Rule(
        "KVL209",
        "pages that an engine family cannot make equal",
        "Choose another block size, tp or cache dtype; or give the groups blocks of their own in the spec, as a model "
        "whose pages lie side by side has.",
        "Groups that share block ids share a page size: smaller pages get more tokens or a pad, but rows of MLA are "
        "indexed whole and cannot have one.",
    ),
    Rule(
        "KVL501",
        "a field has no counterpart on the other side",
        "Describe the same fields on both sides; bytes without a meaning have the tag any.",
        "A page that is filled only in part is a wrong page.",
    ),
    Rule(
        "KVL502",
        "a field has other atoms on the two sides",
        "Use the same dtype, scale recipe and atom size on both sides.",
        "A plan copies bytes and never converts values: bytes of another encoding would be read as wrong numbers.",
    ),
    Rule(
        "KVL503",
        "a field has other axes, or axes of other sizes, on the two sides",
        "Describe the same model on both sides.",
        "Bytes are matched by their coordinates; a coordinate that one side lacks has no byte to come from or go to.",
    ),
    Rule(
        "KVL504",
        "a page that is not cut by tokens has blocks of other sizes",
        "Use equal blocks on both sides for this group.",
        "A field that does not grow with the tokens belongs to its block as a whole and cannot be divided or joined.",
    ),
    Rule(
        "KVL505",
        "an axis would be cut inside a granule",
        "Choose parallel sizes, blocks or token intervals that cut at multiples of the granule.",
        "Units of one granule are bound to each other (by a shared scale, or by an order inside), so half of one is "
        "not half of its bytes.",
    ),
    Rule(
        "KVL506",
        "blocks that meet again only after too many",
        "Choose block sizes with a small common multiple.",
        "A plan describes the smallest span of tokens that is whole blocks on both sides; there it would be too large "
        "to use.",
    ),
    Rule(
        "KVL507",
        "a plan of too many pieces",
        "Choose sides whose digits nest (blocks and interleaves that divide each other), or smaller blocks.",
        "So fragmented a plan takes more room and time than the bytes that it moves.",
    ),
    Rule(
        "KVL508",
        "two specs of different models",
        "Describe the same groups with the same layers in both specs.",
        "Groups pair by name and layers by index; what one side lacks has no place to come from or go to.",
    ),
    Rule(
        "KVL509",
        "an interleave that cuts through the digits of a page",
        "Choose an interleave that nests with the way in which the page factors its tokens.",
        "Tokens that lie in groups (as under a swizzle) are dealt out to ranks in whole groups or whole fractions "
        "of one; otherwise their places follow no digits.",
    ),
    Rule(
        "KVL510",
        "tensors whose blocks do not pair up",
        "Use equal blocks on both sides, or move the bytes by a plan, which says which block of a template is meant.",
        "A view of a tensor speaks of every block at once: block i of the source has to be block i of the destination.",
    ),
)
