"""The nouns of the spec language as pydantic models: format, model and engine files, and the nodes of a page.

These models say what may stand where; what it means is decided by `expand`, `model` and `engine`. Each kind of node is
told by the one key that only it has, so that a misspelled node gets an error about its own kind. The JSON schemas that
`kvlayout schema` prints are generated from here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    RootModel,
    StringConstraints,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from kvlayout.spec.expr import Expr, ExprError, parse

__all__ = [
    "ENGINE_WORDS",
    "EXPRESSION_WORDS",
    "ArrayNode",
    "AxisDecl",
    "ChooseNode",
    "EngineFile",
    "FamiliesFile",
    "FieldNode",
    "FormatFile",
    "GroupDecl",
    "KvDtypesFile",
    "ModelFile",
    "NodeModel",
    "OpaqueNode",
    "PadNode",
    "ParamDecl",
    "Requirement",
    "StructNode",
    "file_schema",
]

ENGINE_WORDS: tuple[str, ...] = (
    "tp", "pp", "dcp", "pcp", "interleave", "stages", "block", "kernel_block", "order", "conv", "spec_tokens", "page",
    "family", "kv_dtype",
)  # fmt: skip
"""The words of an engine; no group may be named like one of them."""

EXPRESSION_WORDS = ("block", "tp", "dcp", "spec_tokens", "order", "conv", "family")
"""The engine words that expressions read; no parameter and no `let` name may be one of them."""

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)]
FormatName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=64)]
Code = Annotated[str, StringConstraints(pattern=r"^(KVL[0-9]{3}|X[A-Za-z0-9_]{1,31})$")]
PlainValue = int | str


def _expression(value: Any) -> Any:
    if isinstance(value, Expr):
        return value
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise PydanticCustomError("kvl_expression", "an expression is an integer or a text")
    try:
        return parse(value)
    except ExprError as error:
        raise PydanticCustomError(
            "kvl_expression", "{message}", {"message": error.message, "column": error.column}
        ) from None


Expression = Annotated[
    Expr,
    BeforeValidator(_expression),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}], "description": "an expression"}),
]


def _refuse_unknown(keys: list[str], legal: list[str]) -> None:
    if keys:
        raise PydanticCustomError("kvl_unknown_key", "unknown keys", {"keys": keys, "legal": legal})


class Model(BaseModel):
    """Strict, closed, and with errors that name the legal keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, arbitrary_types_allowed=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            legal = [field.alias or name for name, field in cls.model_fields.items()]
            _refuse_unknown([key for key in data if key not in legal], legal)
        return data


class ParamDecl(Model):
    """A parameter of a format. `type` is int unless `enum` or `type` says else."""

    type: Literal["int", "dtype", "str"] | None = None
    min: int | None = None
    max: int | None = None
    enum: tuple[str | int, ...] | None = None
    default: Expression | None = None


class Requirement(Model):
    """A condition that must hold on each side, with the code and the sentence of its failure."""

    that: Expression
    code: Code
    say: str


class AxisDecl(Model):
    """An axis: its size, and how ranks and blocks share it (the axis words of the language)."""

    size: Expression
    shard: Literal["tp", "cp"] | None = None
    few: Literal["refuse", "replicate"] = "refuse"
    grows: Literal["block"] | None = None
    granule: Expression | None = None
    common: bool = False


def _kind(data: Any) -> str:
    if isinstance(data, tuple):
        return "node:list"
    if isinstance(data, dict):
        for key in ("field", "array", "struct", "choose", "pad", "opaque"):
            if key in data:
                return f"node:{key}"
    return "node:none"


def _no_node(value: Any) -> Any:
    raise PydanticCustomError(
        "kvl_node",
        "no kind of node",
        {"legal": "a mapping with field, array, struct, choose, pad or opaque, or a list"},
    )


Digit = Name | dict[Name, Expression]


class FieldNode(Model):
    """`{field, bytes, tag}`: one atom of a field."""

    field: Name
    bytes: Expression
    tag: Expression


class OpaqueNode(Model):
    """`{opaque, bytes, tag}`: bytes that move whole, between equal bytes and tag only."""

    opaque: Name
    bytes: Expression
    tag: Expression


class PadNode(Model):
    """`{pad: n}`: bytes that hold no payload."""

    pad: Expression


class ArrayNode(Model):
    """`{array: [axis or digit, ...], of: node}`: `of` repeated, the first axis outermost."""

    array: Name | tuple[Name, ...]
    of: NodeModel
    digits: dict[Name, tuple[Digit, ...]] | None = None


class StructNode(Model):
    """`{struct: [...], align: n}`: packed members, padded at the end to a multiple of `align`."""

    struct: tuple[NodeModel, ...]
    align: Expression | None = None
    digits: dict[Name, tuple[Digit, ...]] | None = None


class ChooseNode(Model):
    """`{choose: word, cases: {...}}`: the case that a parameter or an engine word names."""

    choose: Name
    cases: dict[str, NodeModel]
    digits: dict[Name, tuple[Digit, ...]] | None = None


class NodeModel(RootModel[Any]):
    """Any node of a page. (A model of its own, since a recursive alias needs one on Python 3.11.)"""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    root: Annotated[
        Annotated[FieldNode, Tag("node:field")]
        | Annotated[ArrayNode, Tag("node:array")]
        | Annotated[StructNode, Tag("node:struct")]
        | Annotated[ChooseNode, Tag("node:choose")]
        | Annotated[PadNode, Tag("node:pad")]
        | Annotated[OpaqueNode, Tag("node:opaque")]
        | Annotated[tuple[NodeModel, ...], Tag("node:list")]
        | Annotated[Any, BeforeValidator(_no_node), WithJsonSchema({"not": {}}), Tag("node:none")],
        Discriminator(_kind),
    ]


class Buffers(Model):
    """A page that lies in several buffers."""

    buffers: Annotated[dict[Name, NodeModel], Field(min_length=1)]


def _page_kind(data: Any) -> str:
    return "page:buffers" if isinstance(data, dict) and "buffers" in data else "page:node"


PageModel = Annotated[
    Annotated[Buffers, Tag("page:buffers")] | Annotated[NodeModel, Tag("page:node")], Discriminator(_page_kind)
]

Version = Literal[1]


class FormatFile(Model):
    """`specs/formats/*.yaml`."""

    kvlayout: Version
    format: FormatName
    source: str
    extends: FormatName | None = None
    params: dict[Name, ParamDecl] = {}
    let: dict[Name, Expression] = {}
    require: tuple[Requirement, ...] = ()
    axes: dict[Name, AxisDecl] = {}
    examples: tuple[dict[Name, PlainValue], ...] = ()
    page: PageModel


class LayerRange(Model):
    """Layers `start`, `start + every`, ...: `count` of them."""

    start: Annotated[int, Field(alias="from", ge=0)]
    every: Annotated[int, Field(ge=1)] = 1
    count: Annotated[int, Field(ge=1)]


def _layers_word(value: Any) -> Any:
    if value != "all":
        raise PydanticCustomError(
            "kvl_value", "layers", {"expected": "a list of layers, {from, every, count}, all, or a count"}
        )
    return value


def _layers_kind(data: Any) -> str:
    if isinstance(data, dict):
        return "layers:range"
    if isinstance(data, tuple):
        return "layers:list"
    return "layers:all" if isinstance(data, str) else "layers:count"


Layers = Annotated[
    Annotated[Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)], Tag("layers:list")]
    | Annotated[LayerRange, Tag("layers:range")]
    | Annotated[Literal["all"], BeforeValidator(_layers_word), Tag("layers:all")]
    | Annotated[Annotated[int, Field(ge=1)], Tag("layers:count")],
    Discriminator(_layers_kind),
]


class GroupDecl(Model):
    """One cache group of a model: a format with parameters, or an inline page."""

    layers: Layers
    format: FormatName | None = None
    params: dict[Name, PlainValue] = {}
    block: Annotated[int, Field(ge=1, le=2**40)] | None = None
    window: Annotated[int, Field(ge=1, le=2**40)] | None = None
    page: PageModel | None = None
    axes: dict[Name, AxisDecl] | None = None
    let: dict[Name, Expression] | None = None
    require: tuple[Requirement, ...] | None = None

    @model_validator(mode="after")
    def _format_or_page(self) -> GroupDecl:
        own = [name for name in ("page", "axes", "let", "require") if getattr(self, name)]
        if self.format is not None and own:
            got = f"a format and {', '.join(own)}"
        elif self.format is None and self.page is None:
            got = "neither"
        else:
            return self
        raise PydanticCustomError("kvl_group", "a group has a format, or a page of its own", {"got": got})


class ModelFile(Model):
    """`specs/models/*.yaml`."""

    kvlayout: Version
    model: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    source: str
    num_layers: Annotated[int, Field(ge=1, le=100_000)] | None = None
    tp: Annotated[tuple[Annotated[int, Field(ge=1, le=4096)], ...], Field(min_length=1, max_length=64)] | None = None
    groups: Annotated[dict[Name, GroupDecl], Field(min_length=1, max_length=1000)]


class KvDtype(Model):
    """What a cache dtype word makes of a format."""

    format: FormatName | None = None
    params: dict[Name, PlainValue] = {}


class KvDtypesFile(Model):
    """`specs/kv_dtypes.yaml`: by format, by word."""

    kvlayout: Version
    kv_dtypes: dict[FormatName, dict[str, KvDtype]]


class Stored(Model):
    """The format that a family stores in the place of another, and what it says of its own parameters."""

    format: FormatName
    params: dict[Name, PlainValue] = {}


class FamiliesFile(Model):
    """`specs/families.yaml`: by family, what takes the place of a format."""

    kvlayout: Version
    families: dict[str, dict[FormatName, Stored]]


class EngineFile(BaseModel):
    """`specs/engines/*.yaml`: the words of an engine as keys, overrides as a mapping under the group's name."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)
    __pydantic_extra__: dict[Name, dict[Name, PlainValue]]

    kvlayout: Version
    engine: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    tp: int | None = None
    pp: int | None = None
    dcp: int | None = None
    pcp: int | None = None
    interleave: int | None = None
    stages: str | int | None = None
    block: int | None = None
    kernel_block: int | None = None
    order: str | None = None
    conv: str | None = None
    spec_tokens: int | None = None
    page: int | None = None
    family: str | None = None
    kv_dtype: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _known_words(cls, data: Any) -> Any:
        """A key that is no word is a group, and then it has overrides."""
        if isinstance(data, dict):
            legal = list(cls.model_fields)
            unknown = [key for key, value in data.items() if key not in legal and not isinstance(value, dict)]
            _refuse_unknown(unknown, [*legal, "a group with its overrides"])
        return data


ArrayNode.model_rebuild()
StructNode.model_rebuild()
ChooseNode.model_rebuild()
NodeModel.model_rebuild()


def file_schema(kind: str) -> dict[str, Any]:
    """The JSON schema of a `format`, `model` or `engine` file."""
    models: dict[str, type[BaseModel]] = {"format": FormatFile, "model": ModelFile, "engine": EngineFile}
    made = models[kind].model_json_schema(by_alias=True)
    if kind != "engine":
        _allow_own_keys(made)
    if kind == "format":  # what a format extends may give its page
        made["required"].remove("page")
        made["anyOf"] = [{"required": ["page"]}, {"required": ["extends"]}]
    return made


def _allow_own_keys(value: Any) -> None:
    """Keys that start with `x-` are the user's own, in every mapping of a spec."""
    if isinstance(value, dict):
        if value.get("additionalProperties") is False:
            value["patternProperties"] = {"^x-": {}}
        for each in value.values():
            _allow_own_keys(each)
    elif isinstance(value, list):
        for each in value:
            _allow_own_keys(each)
