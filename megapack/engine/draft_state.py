"""What happens to a draft when a checkpoint and the model that reads it are not of one mind."""

import logging
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemReader

from megapack.errors import ConfigError
from megapack.model.draft import NAME, draft_of

_logger = logging.getLogger(__name__)


def check_draft(chunk: Any, folder: Path) -> None:  # noqa: ANN401 - upstream type
    """Say that a checkpoint's draft is left out; refuse to make one up.

    Args:
        chunk: that reads the folder's weights, without wrappers.
        folder: of a checkpoint.

    Raises:
        ConfigError: the chunk has a draft and the checkpoint has none.
    """
    names = FileSystemReader(folder).read_metadata().state_dict_metadata
    held = any(name.startswith(f"{NAME}.") for name in names)
    wanted = draft_of(chunk) is not None
    if wanted and not held:
        raise ConfigError(
            "checkpoint: expected a draft, found the policy alone. Read the weights into the model "
            "before attach_draft, which begins a new draft."
        )
    if held and not wanted:
        _logger.warning("the checkpoint holds a draft, which is left out: the policy alone is read")
