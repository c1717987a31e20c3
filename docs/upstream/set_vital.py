"""A StatefulDataLoader warns of torch's own deprecated function. See set_vital.md."""

import sys
import warnings


def fault_is_present() -> bool:
    """Whether making a loader warns of `set_vital`."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        StatefulDataLoader([1])
    return any("set_vital" in str(warning.message) for warning in caught)


if __name__ == "__main__":
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
