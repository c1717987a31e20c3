"""megatron-core imports psutil for checkpoints without declaring it. See undeclared_psutil.md."""

import sys
from importlib.metadata import requires


def fault_is_present() -> bool:
    """Whether the package's metadata name psutil nowhere."""
    return not any("psutil" in requirement for requirement in requires("megatron-core") or [])


if __name__ == "__main__":
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
