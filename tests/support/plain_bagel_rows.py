"""A row written token by token into plain lists: the reference for `multimodal.assemble`.

Written from the issue and BAGEL's documented rules, with loops and Python numbers only, and nothing
of `megapack.multimodal`. Slow; for small samples.
"""

from collections import defaultdict
from math import inf


def plain_row(samples, rules):
    """Fields of `MultimodalRow` as lists, from (sample, kept, timesteps) triples."""
    row = defaultdict(list, length=0)
    for number, (sample, kept, timesteps) in enumerate(samples):
        row["starts"].append(row["length"])
        row["dropped"].append([])
        before = row["length"]
        _write_sample(row, sample, kept, timesteps, number=number, rules=rules)
        row["sample_lengths"].append(row["length"] - before)
    row["vae_images"] = _pad(row.pop("images", []))
    return row


def _write_sample(row, sample, kept, timesteps, *, number, rules):
    position, image = 0, 0
    for item, stays, timestep in zip(sample.items, kept, timesteps, strict=True):
        kind = item.kind.value
        if kind == "text":
            if stays:
                _begin_split(row, number, "causal")
                position = _write_text(row, item, position, rules)
            else:
                row["dropped"][-1].append(kind)
            continue
        pixels, image = sample.pixels[image].tolist(), image + 1
        if stays:
            if not item.joins:
                noisy = kind == "vae" and item.loss
                _begin_split(row, number, "noise" if noisy else "full")
            _write_image(row, item, pixels, float(timestep), position, rules)
        else:
            row["dropped"][-1].append(kind)
        if item.position_step is not None:
            position += item.position_step
        elif not (kind == "vae" and item.loss):
            position += 1


def _begin_split(row, number, mode):
    row["split_lengths"].append(0)
    row["split_samples"].append(number)
    row["attention_modes"].append(mode)


def _put(row, position):
    """Take the next place of the row."""
    place = row["length"]
    row["length"] += 1
    row["split_lengths"][-1] += 1
    row["position_ids"].append(position)
    return place


def _put_text(row, token, position):
    place = _put(row, position)
    row["text_ids"].append(token)
    row["text_index"].append(place)
    return place


def _label(row, place, label, weight):
    row["ce_index"].append(place)
    row["label_ids"].append(label)
    row["ce_weights"].append(weight)


def _write_text(row, item, position, rules):
    ids = item.text.tolist()
    written = [rules.special.bos, *ids, rules.special.eos]
    count = len(ids) + 1
    weight = {"token": 1.0, "sample": 1 / count, "square": count**-0.5}[rules.loss_weighting.value]
    for order, token in enumerate(written):
        place = _put_text(row, token, position)
        position += 1
        if item.loss and order + 1 < len(written):
            _label(row, place, written[order + 1], weight)
    if item.end_label is not None:
        _label(row, place, item.end_label, 1.0)
    return position


def _write_image(row, item, pixels, timestep, position, rules):
    vision = rules.vision
    vit = item.kind.value == "vit"
    patch = vision.vit_patch_size if vit else vision.vae_downsample
    side = vision.vit_max_side if vit else vision.vae_max_side
    high, wide = len(pixels) // patch, len(pixels[0]) // patch
    _put_text(row, rules.special.start_of_image, position)
    for y in range(high):
        for x in range(wide):
            place = _put(row, position)
            cell = _cell(y, high, side, vision) * side + _cell(x, wide, side, vision)
            if vit:
                row["vit_index"].append(place)
                row["vit_position_ids"].append(cell)
                row["vit_tokens"].append(_patch(pixels, y * patch, x * patch, patch, vision))
            else:
                row["vae_index"].append(place)
                row["vae_position_ids"].append(cell)
                row["timesteps"].append(timestep if item.loss else -inf)
                if item.loss:
                    row["mse_index"].append(place)
    last = _put_text(row, rules.special.end_of_image, position)
    if item.end_label is not None:
        _label(row, last, item.end_label, 1.0)
    if vit:
        row["vit_lengths"].append(high * wide)
    else:
        row["vae_shapes"].append([high, wide])
        row["images"].append(
            [
                [
                    [_normal(dot[c], vision.vae_mean[c], vision.vae_std[c]) for dot in line]
                    for line in pixels
                ]
                for c in range(3)
            ]
        )


def _cell(number, count, side, vision):
    """The cell of a row or column: its number, or the last whose lower border is not beyond."""
    if vision.positions.value == "extrapolate":
        return number
    return max(cell for cell in range(side) if cell * count <= number * side)


def _normal(value, mean, std):
    return (value / 255 - mean) / std


def _patch(pixels, top, left, patch, vision):
    return [
        _normal(pixels[y][x][c], vision.vit_mean[c], vision.vit_std[c])
        for y in range(top, top + patch)
        for x in range(left, left + patch)
        for c in range(3)
    ]


def _pad(images):
    """Channels first, zeros to the right of and below each image."""
    high = max((len(image[0]) for image in images), default=0)
    wide = max((len(image[0][0]) for image in images), default=0)
    return [
        [
            [
                [plane[y][x] if y < len(plane) and x < len(plane[0]) else 0.0 for x in range(wide)]
                for y in range(high)
            ]
            for plane in image
        ]
        for image in images
    ]


def plain_mask(row):
    """Who sees whom in a row of `plain_row`, as a list of lists over all positions.

    As the published dense mask is filled: what stands before, then whole splits, then noise hidden
    from the rest; nothing across samples.
    """
    owner = [
        (split, sample, mode)
        for split, (length, sample, mode) in enumerate(
            zip(row["split_lengths"], row["split_samples"], row["attention_modes"], strict=True)
        )
        for _ in range(length)
    ]
    mask = []
    for q, (split, sample, _) in enumerate(owner):
        line = []
        for k, (other, their_sample, mode) in enumerate(owner):
            seen = k <= q or (split == other and mode in ("full", "noise"))
            if mode == "noise" and split != other:
                seen = False
            line.append(seen and sample == their_sample)
        mask.append(line)
    return mask
