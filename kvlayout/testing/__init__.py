"""What a test of a layout, a plan, a connector or a store needs, shipped with the package.

`reseal` re-signs a document that a test has changed. `mutators` makes wrong plans out of right ones; `strategies` makes
pages, sides, engines and plans for Hypothesis, which only that module imports.
"""

from kvlayout.testing.seals import reseal

__all__ = ["reseal"]
