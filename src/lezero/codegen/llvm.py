"""LLVM IR text in, a relocatable object out.

This module imports nothing of ours, so that a compile helper can load it by path without importing the package
(see ``backends/cpu/compile_worker.py``), and it imports llvmlite only when something must be compiled: a process
that finds all its kernels on disk never pays for loading LLVM (0.18 s).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lezero.codegen.target import Target

_machines: dict[tuple[str, str, str, int], Any] = {}


class CompileError(RuntimeError):
    """LLVM refused the IR, or has no code generator for the target."""


class NoTargetError(CompileError):
    """This build of LLVM has no code generator for the target."""


def compile_to_object(ir_text: str, target: Target) -> bytes:
    """Verify, optimise and assemble a module.

    The code is position-independent and reaches its constants relative to the program counter, so that the object
    can be placed anywhere.  Kernels arrive explicitly vectorised: LLVM is not asked to find vectors (the loop and
    superword vectorisers are off), only to schedule, allocate registers and clean up.

    Parameters
    ----------
    ir_text : str
        LLVM assembly of one module; its triple is replaced by the target's.
    target : Target
        Only ``triple``, ``cpu``, ``features`` and ``effort`` are read.

    Returns
    -------
    bytes
        A relocatable object in the format of the triple (ELF on Linux).

    Raises
    ------
    CompileError
        If the text does not parse or verify; NoTargetError if LLVM has no such target.
    """
    import llvmlite.binding as llvm

    machine = _machine(target.triple, target.cpu, target.features, target.effort)
    # A context of its own: whatever LLVM makes unique in it (types, constants) goes with it.
    context = llvm.create_context()
    # An interrupt's traceback may hold the module and the context in a cycle, which is finalised in any order, and LLVM
    # crashes if the context goes first.  So it goes only here; where this is not reached, it leaks.
    context._owned = True
    try:
        module = llvm.parse_assembly(ir_text, context=context)
        try:
            return _optimised(llvm, module, machine, target)
        finally:
            module.close()
            context._owned = False
    except RuntimeError as error:
        raise CompileError(f"LLVM refused the generated code: {error}") from None


def _optimised(llvm: Any, module: Any, machine: Any, target: Target) -> bytes:
    module.triple = target.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=target.effort)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_interleaving = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return machine.emit_object(module)


def _machine(triple: str, cpu: str, features: str, effort: int) -> Any:
    key = (triple, cpu, features, effort)
    machine = _machines.get(key)
    if machine is None:
        import llvmlite.binding as llvm

        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        llvm.initialize_native_asmparser()  # inline assembly
        try:
            found = llvm.Target.from_triple(triple)
            machine = found.create_target_machine(
                cpu=cpu, features=features, opt=effort, reloc="pic", codemodel="small"
            )
        except RuntimeError as error:
            raise NoTargetError(
                f"this build of llvmlite generates no code for {triple} ({error}). Install one that does "
                "(pip install --force-reinstall llvmlite), or compute with NumPy, slowly: LEZERO_BACKEND=numpy"
            ) from None
        _machines[key] = machine
    return machine
