"""Words and colours of stages, as all parts of the page have them."""

BUILD = ("read", "transform", "collate", "batch_transform")
STAGE_NAMES = {
    "read": "read",
    "transform": "transform",
    "collate": "collate",
    "batch_transform": "batch transform",
    "wait": "wait of the loop",
    "wait_worker": "for workers",
    "place": "placing",
    "call": "calling the callable",
    "step": "your step",
}
WAIT_COLOURS = {"worker": "wait", "build": "read", "place": "place"}


def wait_names(with_workers: bool) -> dict[str, str]:
    """What a loop waits for."""
    rest = "waiting for workers" if with_workers else "handing over"
    return {"worker": rest, "build": "building here", "place": "placing"}
