"""`LargestTensor`: how large the largest tensor was that any operation made."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestTensor(TorchDispatchMode):
    """Remembers the most values, and the most of a float dtype of 32 bits or more."""

    def __init__(self) -> None:
        super().__init__()
        self.values = 0
        self.wide_values = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                self.values = max(self.values, leaf.numel())
                if leaf.is_floating_point() and leaf.element_size() >= 4:
                    self.wide_values = max(self.wide_values, leaf.numel())
        return made
