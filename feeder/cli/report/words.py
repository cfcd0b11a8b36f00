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
WAIT_NAMES = {"worker": "waiting for workers", "build": "building here", "place": "placing"}
WAIT_COLOURS = {"worker": "wait", "build": "read", "place": "place"}
