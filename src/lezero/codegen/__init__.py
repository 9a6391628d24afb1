"""Code generation: from the loop IR and contraction specs to LLVM IR, for an explicit target."""
