"""Conformance: plans against facts that were not made by the compiler."""
