"""Synthetic images of digits: 12 by 12 pixels, shifted, thick and thin, with noise. Needs no download."""

import torch

GLYPHS = """
 ###    #    ###   ###     #  #####  ###  #####  ###   ###
#   #  ##   #   # #   #   ##  #     #         # #   # #   #
#   # # #       #     #  # #  ####  #        #  #   # #   #
#   #   #      #   ###  #  #      # ####    #    ###   ####
#   #   #     #       # #####     # #   #   #   #   #     #
#   #   #    #    #   #    #  #   # #   #   #   #   #     #
 ###  ##### #####  ###     #   ###   ###    #    ###   ###
""".strip("\n").split("\n")
SIDE, HEIGHT, WIDTH = 12, 7, 5


def glyph(digit):
    rows = [row.ljust(60)[digit * 6 : digit * 6 + WIDTH] for row in GLYPHS]
    return torch.tensor([[float(cell == "#") for cell in row] for row in rows])


def digits(count, *, seed):
    """Return `count` images and their labels, which depend on the seed only."""
    dice = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=dice)
    down = torch.randint(0, SIDE - HEIGHT + 1, (count,), generator=dice).tolist()
    right = torch.randint(0, SIDE - WIDTH + 1, (count,), generator=dice).tolist()
    ink = torch.rand(count, 1, 1, generator=dice) * 0.6 + 0.6
    shapes = torch.stack([glyph(digit) for digit in range(10)])
    pictures = torch.zeros(count, SIDE, SIDE)
    for index, label in enumerate(labels.tolist()):
        at, left = down[index], right[index]
        pictures[index, at : at + HEIGHT, left : left + WIDTH] = shapes[label]
    pictures = pictures * ink + 0.35 * torch.randn(count, SIDE, SIDE, generator=dice)
    return torch.utils.data.TensorDataset(pictures.unsqueeze(1), labels)
