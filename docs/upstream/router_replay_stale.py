"""RouterReplay's backward takes routes of an earlier forward. See router_replay_stale.md."""

import sys

import torch


def fault_is_present() -> bool:
    """Whether a recompute is given the routes of a forward that had no backward."""
    from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction

    router = RouterReplay()
    scores = torch.zeros(1, 4)
    evaluated, trained = torch.tensor([[0, 1]]), torch.tensor([[2, 3]])
    for routes in (evaluated, trained):
        router.set_target_indices(routes)
        router.set_router_replay_action(RouterReplayAction.REPLAY_FORWARD)
        router.get_replay_topk(scores, 2)
    router.set_router_replay_action(RouterReplayAction.REPLAY_BACKWARD)
    _, again = router.get_replay_topk(scores, 2)
    RouterReplay.clear_global_router_replay_instances()
    return torch.equal(again, evaluated)


if __name__ == "__main__":
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
