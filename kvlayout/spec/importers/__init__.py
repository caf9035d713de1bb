"""Importers: model specs from what other projects already say about a model."""

from kvlayout.spec.importers.hf import Imported, from_hf, import_hf

__all__ = ["Imported", "from_hf", "import_hf"]
