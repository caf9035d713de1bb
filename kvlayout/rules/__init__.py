"""The registry of rule codes: what is wrong, what to change, and why it is a rule; one module per range.

A code never changes its meaning and is never used again. `kvlayout explain CODE` prints the page of a rule; formats
declare more rules in their `require` lists (`KVL210` and above in shipped formats, `X...` in a user's own), which are
explained from the format file.

| range | speaks of | module |
| --- | --- | --- |
| KVL0xx | files and YAML, before any meaning | `files` |
| KVL1xx | specs: expressions, axes, page trees, models, engines | `specs`, `pages` |
| KVL20x | sides that no engine can load | `sides` |
| KVL3xx | proofs: what the checker found wrong in a plan | `proofs` |
| KVL4xx | artifacts: seals, digests, versions | `proofs` |
| KVL5xx | pairs: two sides that exist but cannot be converted | `sides` |
| KVL6xx | moves: buffers, block tables and kernels | `moves` |
| KVL7xx | engines that are read from their own objects | `integrations` |
"""

from __future__ import annotations

from kvlayout.rules import files, integrations, moves, pages, proofs, sides, specs
from kvlayout.rules.rule import Rule

__all__ = ["RULES", "Rule"]

_TABLES = (
    *files.TABLE,
    *specs.TABLE,
    *pages.TABLE,
    *sides.TABLE,
    *proofs.TABLE,
    *moves.TABLE,
    *integrations.TABLE,
)

RULES: dict[str, Rule] = {rule.code: rule for rule in sorted(_TABLES, key=lambda rule: rule.code)}
"""Every rule of the package by its code, in the order of the codes."""
