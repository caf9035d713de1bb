"""From two sides to a plan: pair fields, share axes, find needs, choose sources, lower to nests."""
