"""A chain of two optimizers is read by a chain of two only. See expert_optimizer_chain.md."""

import sys

import torch


def fault_is_present() -> bool:
    """Whether a chain of one refuses what a chain of two has saved."""
    from megatron.core.optimizer.optimizer import ChainedOptimizer

    class One:
        config = None
        is_stub_optimizer = False

        def __init__(self) -> None:
            self.optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])

        def state_dict(self) -> dict[str, object]:
            return {"optimizer": self.optimizer.state_dict()}

        def load_state_dict(self, state: dict[str, object]) -> None:
            self.optimizer.load_state_dict(state["optimizer"])

    saved = ChainedOptimizer([One(), One()]).state_dict()
    try:
        ChainedOptimizer([One()]).load_state_dict(dict(enumerate(saved)))
    except KeyError as error:
        return error.args == ("optimizer",)
    return False


if __name__ == "__main__":
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
