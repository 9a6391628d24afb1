"""The loop IR, its builder, verifier and printer."""
