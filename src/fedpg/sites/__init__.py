"""A federation between machines, whatever carries its messages: its folder and keys, its rounds, its ledger."""
