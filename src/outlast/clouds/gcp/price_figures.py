"""List prices of Google's machine families by region, and spot prices as a part of them. Dated figures, no requests.

The figures are those of Google's billing catalogue on the date. They are used if the catalogue cannot be fetched.
"""

from __future__ import annotations

import statistics
from functools import cache

import msgspec

AS_OF = "2026-08-21"

# The order of the figures below.
_REGIONS = """
africa-south1 asia-east1 asia-east2 asia-northeast1 asia-northeast2 asia-northeast3 asia-south1 asia-south2
asia-southeast1 asia-southeast2 asia-southeast3 australia-southeast1 australia-southeast2 europe-central2
europe-north1 europe-north2 europe-southwest1 europe-west1 europe-west10 europe-west12 europe-west2 europe-west3
europe-west4 europe-west6 europe-west8 europe-west9 me-central1 me-central2 me-west1 northamerica-northeast1
northamerica-northeast2 northamerica-south1 southamerica-east1 southamerica-west1 us-central1 us-central2 us-east1
us-east4 us-east5 us-south1 us-west1 us-west2 us-west3 us-west4
"""

# Family → USD per hour in us-central1 for a CPU, a GB of memory and a GPU. GPUs that are attached to N1 are families.
_BASE = """
a2-highgpu 0.031611 0.004237 2.933908   a2-megagpu 0.031611 0.004237 2.933908   a2-ultragpu 0.031611 0.004237 3.928079
a3-edgegpu 0.0293 0.00255 9.620557   a3-highgpu 0.0293 0.00255 9.620559   a3-megagpu 0.0293 0.00255 10.168284
a3-ultragpu 0.0293 0.00255 9.08364   a4 0 0 11.277   c2 0.033982 0.004555 0   c2d 0.029563 0.003959 0   c3 0.03465
0.003938 0   c3d 0.029563 0.003959 0   c4 0.03465 0.003938 0   c4d 0.032703 0.003496 0   e2 0.021811 0.002924 0
f1-micro 0.00559 0.003352 0   g1-small 0.006611 0.011234 0   g2 0.024988 0.002927 0.56004   g4 0.04891 0.00587 1.09565
h3 0.003291 0.013165 0   h4d 0.036075 0.001288 0   m1 0.0348 0.0051 0   m3 0.0348 0.0051 0   n1 0.031611 0.004237 0
n2 0.031611 0.004237 0   n2d 0.027502 0.003686 0   n4 0.03119 0.00354 0   n4a 0.02646 0.00301 0   n4d 0.02911 0.00331
0   nvidia-tesla-p100 0 0 1.46   nvidia-tesla-p4 0 0 0.6   nvidia-tesla-t4 0 0 0.35   nvidia-tesla-v100 0 0 2.48   t2a
0.002265 0.009059 0   t2d 0.027502 0.003686 0   z3 0.001583 0.012664 0
"""

# Family → the price in each region in thousandths of the one in us-central1; `-`: not sold there. `900x3`: three times.
_ON_DEMAND = """
a2-highgpu -x3 1102 - 1102 -x2 1093 -x13 1020 -x5 1100 -x5 1000 - 1000 -x3 1000 - 1177 1071
a2-megagpu -x8 1085 -x13 1016 -x11 1000 -x9
a2-ultragpu -x8 1234 -x13 1101 -x11 1000 -x2 1126 1099 -x5
a3-edgegpu -x3 1432 - 1284 1040 - 1293 -x3 1300 -x7 1140 1180 1273 -x2 1160 -x4 1101 -x3 1000 -x2 1000 1126 - 1000 -x2
  1126
a3-highgpu - 1158 - 1432 - 1284 1040 1201 1293 -x2 1250 1300 - 1101 -x2 1101 -x3 1180 1273 -x2 1160 -x8 1000 -x2 1000
  1126 - 1000 -x2 1126
a3-megagpu -x3 1284 -x4 1293 -x2 1250 -x5 1101 -x3 1180 1274 -x11 1000 -x2 1000 1013 - 1000 -x2 1126
a3-ultragpu -x6 1177 -x10 1101 -x16 1000 -x2 1000 -x2 1000 -x3
a4 -x3 1000 -x4 1714 -x5 1000 -x2 1000 -x4 1000 -x11 1000 - 1000x2 - 1000 - 1000x2 -
c2 - 1158 1399 1283x3 1201x2 1234 -x2 1419 -x2 1101 -x2 1100 -x2 1288x2 1101 1310 -x3 1600 1100 1101 -x2 1587 1430
  1000 - 1000 1126 1000 - 1000 1201x2 1126
c2d 1101 1158 1399 1284x3 660 1201 1234 -x2 1419x2 1211 -x2 1180 1101 - 1290 1288x2 1101 - 1160 -x2 1600 1100 1101x2 -
  1588 - 1000 - 1000 1126 -x2 1000 1202x2 1126
c3 - 1158 1399 1284x3 1040x2 1234 1345 - 1250 1300 - 1101 1050 - 1101 1180 - 1140 1180 1050 -x2 1160 1215 1600 1100
  1101x2 - 1588 - 1000 - 1000x3 1180 1000 1202x2 1126
c3d - 1158 -x4 1040 - 1234 - 1050 1250 1300 - 1101 1050 - 1101 -x2 1140 1180 1050 -x4 1600 1100 -x2 1090 -x2 1000 -
  1000x2 1126 - 1000 1202 - 1126
c4 1101 1158 1399 1284x3 1040x2 1234 1345 1050 1250 1300 1210 1101 1050 1180 1101 1180 1290 1140 1180 1050 1310 1160x2
  1215 1600 1100 1101x2 1090 1588 1430 1000 - 1000x3 1180 1000 1202x2 1126
c4d 1101 1158 - 1284 -x2 1040 - 1234 -x2 1250 1300 -x3 1180 1101 1180 - 1140 1180 1050 -x2 1160 -x3 1101x2 -x3 1000 -
  1000x3 - 1000 - 1202 1126
e2 1100 1158 1399 1283x3 1201x2 1234 1345 - 1419 1206 1210 1101 1050 1180 1100 1288 1290 1288x2 1101 1310 1160x2 1215
  1600 1100 1101x2 1090 1587 1430 1000 - 1000 1126 1000 1180 1000 1201x2 1126
f1-micro - 1184 1395 1211x3 1197x2 1211 1320 - 1395 1420 1263 1105 -x2 1132 -x2 1263x2 1105 1316 -x5 1105x2 - 1553 -
  1000 - 1000 1132 -x2 1000 1197x2 1132
g1-small - 1167 1397 1253x3 1198x2 1210 1319 - 1389 1420 1261 1101 -x2 1109 -x2 1261x2 1101 1311 -x5 1101x2 - 1556 -
  1000 - 1000 1125 -x2 1000 1198x2 1125
g2 - 1158 - 1284 - 1284 1041 - 1234 -x8 1101 -x2 1139 1179 1051 1360 -x3 1600 - 1101x2 -x3 1000 - 1000 997 -x2 1000
  -x2 1126
g4 - 1300 -x4 1300x2 1200 1300 -x4 1100 -x2 1100 1200 - 1200 - 1100 - 1200 -x2 1200 -x6 1000 - 1000x2 1100 1000x2 -
  1100x2
h3 -x22 1050 -x6 1101 -x4 1000 -x9
h4d -x6 1339 - 1244 -x13 1024 -x11 1000 - 1000 -x7
m1 - 1161 - 1223x3 1147x2 1178 1284 - 1355 1420 1229 -x2 1180 1103 -x2 1229x2 1051 1310 1160x2 -x2 1100 1051 1100 -
  1511 1430 1000 - 1000 1129 -x2 1000 1147 - 1129
m3 1101 1158 - 1284x3 1041x2 1234 - 1051 1250 1300 1210 1101 - 1180 1101 - 1290 1139 1179 1051 1310 1160x2 1215 1600
  1100 1101x2 - 1588 1430 1000 - 1000 997 -x2 1000 - 1202 1126
n1 - 1158 1399 1283x3 1201x2 1234 1345 - 1419x2 1210 1101 - 1180 1100 -x2 1288x2 1101 1310 1160x2 -x2 1100 1101x2 -
  1587 1430 1000x3 1126 -x2 1000 1201x2 1126
n2 1100 1158 1399 1283 1284x2 1201x2 1234 1345 - 1419 1206 1210 1101 - 1180 1100 1288 1290 1288x2 1101 1310 1160x2
  1215 1600 1100 1101x2 - 1587 1430 1000 - 1000 1126 1000 1180 1000 1201x2 1126
n2d 1100 1158 1399 1283 1284x2 660 1201 1234 1345 - 1419 1206 1210 1101 - 1180 1100 1288 1290 1288x2 1101 1310 1160x2
  1215 1600 1100 1101x2 - 1587 1430 1000 - 1000 1126 1000 1180 1000 1201x2 1126
n4 1101 1158 1399 1284x3 1040x2 1234 1345 1050 1250 1300 1210 1101 1050 1180 1101 -x2 1140 1180 1050 1310 1160x2 1215
  1600 1100 1101x2 1090 1588 1430 1000 - 1000x3 1180 1000 1202x2 1126
n4a -x8 1233 -x8 1101 -x2 1140 1180 1050 -x11 1000 - 1000x2 -x2 1000 -x3
n4d -x6 760 - 1233 -x8 1101 -x2 1140 1180 1050 -x11 1000 - 1000x3 - 1000 - 1202 1126
nvidia-tesla-p100 - 1096 -x9 1096 -x5 1096 -x4 1096 -x11 1000 - 1000 -x3 1000 -x3
nvidia-tesla-p4 -x8 1083 -x2 1083 -x10 1083 -x6 1083 -x4 1000 -x2 1000 -x3 1200 -x2
nvidia-tesla-t4 - 1000 1257 1057 - 1057 1171 - 1057 1152 - 1257 - 1171 -x3 1000 -x2 1171x2 1000 -x5 1100x2 -x2 1371 -
  1000 - 1000 1057 -x2 1000 1171x2 1057
nvidia-tesla-v100 - 1000 -x20 1028 -x11 1000 - 1000 -x3 1000 -x3
t2a -x8 1233 -x13 1050 -x11 1000 -x9
t2d 1100 1158 1399 1283 1284 - 660 1201 1234 1345 - 1419x2 1210 1101 - 1180 1100 1288 1290 1288x2 1101 1310 1160x2
  1215 1600 1100 1101x2 - 1587 1430 1000 - 1000 1126 1000 1180 1000 1201x2 1126
z3 - 1158 - 1284 -x2 1040 - 1234 -x2 1250 1300 -x2 1050 - 1310x2 - 1140 1180 1050 1310 1160 - 1215 -x3 1101 1090 1588
  1430 1000 - 1000x2 1126 1180 1000 1202 -x2
"""

# Family → the spot price in each region in thousandths of the on-demand price there.
_SPOT = """
a2-highgpu -x3 600 - 600 -x2 600 -x13 600 -x5 600 -x5 577 - 577 -x3 577 - 600 535
a2-megagpu -x8 600 -x13 600 -x11 577 -x9
a2-ultragpu -x8 539 -x13 518 -x11 577 -x2 427 341 -x5
a3-edgegpu -x3 191 - 387 521 - 596 -x3 91 -x7 90 473 474 -x2 224 -x4 218 -x3 600 -x2 496 452 - 600 -x2 452
a3-highgpu - 568 - 191 - 387 521 292 596 -x2 250 91 - 90 -x2 473 -x3 473 474 -x2 224 -x8 600 -x2 496 452 - 600 -x2 452
a3-megagpu -x3 279 -x4 595 -x2 393 -x5 475 -x3 582 473 -x11 600 -x2 300 452 - 600 -x2 262
a3-ultragpu -x6 545 -x10 582 -x16 581 -x2 585 -x2 581 -x3
a4 -x3 526 -x4 254 -x5 482 -x2 186 -x4 397 -x11 439 - 439 361 - 398 - 378 438 -
c2 - 286 292 229 457 204 562 169 544 -x2 520 -x2 544 -x2 599 -x2 237 216 392 441 -x3 109 94 183 -x2 160 140 553 - 553
  359 144 - 553 255 213 254
c2d 261 187 153 375 125 166 293 185 551 -x2 94 145 170 -x2 189 134 - 168 349 227 366 - 196 -x2 91 301 278 199 - 170 -
  447 - 447 304 -x2 447 226 94 179
c3 - 293 126 200 141 316 158 118 516 166 - 252 185 - 291 308 - 362 163 - 600 336 512 -x2 268 95 156 168 276 90 - 106 -
  311 - 311 269 322 106 311 199 600 437
c3d - 344 -x4 323 - 496 - 400 116 280 - 488 296 - 270 -x2 463 570 548 -x4 181 226 -x2 261 -x2 211 - 211 433 460 - 211
  300 - 177
c4 470 542 404 548 380 410 525 438 439 210 306 463 364 349 243 495 294 574 471 190 385 437 397 518 429 191 398 125 126
  172 600 343 338 508 600 - 600 541 545 285 600 292 365 547
c4d 473 398 - 398 -x2 333 - 326 -x2 398x2 -x3 398 520x2 - 380 572 437 -x2 438 -x3 398x2 -x3 368 - 368 538 378 - 368 -
  398 209
e2 325 495 196 600 275 414 600 449 547 231 - 488 474 301 252 233 547 561 138 335 332 600 501 390 476 517 374 600 468
  311 210 343 191 344 600 - 600 574 399 337 600 323 290 126
f1-micro - 90 132 90x2 125 90 92 114 104 - 90 125 90x2 -x2 90 -x2 90 343 113 90 -x5 90x2 - 91 - 89 - 89 112 -x2 89 90
  132 123
g1-small - 90 99 90 247 158 90x2 106 90 - 90x4 -x2 98 -x2 90x2 131 90 -x5 90x2 - 90 - 90 - 90x2 -x2 90 94 108 103
g2 - 573 - 600 - 343 485 - 600 -x8 557 -x2 600x4 -x3 600 - 600x2 -x3 600 - 600 485 -x2 600 -x2 600
g4 - 440 -x4 385 390 395 408 -x4 395 -x2 395 425 - 390 - 395 - 395 -x2 440 -x6 367 - 352 367 395 367 352 - 395x2
h3 -x22 347 -x6 132 -x4 572 -x9
h4d -x6 397 - 358 -x13 377 -x11 441 - 441 -x7
m1 - 123 - 150 90x2 99 90 127 90 - 90x3 -x2 91 156 -x2 90 96 145 90 94 90 -x2 182 90 117 - 92 90 192 - 192 163 -x2 192
  128 - 90
m3 191 91 - 114 111 259 90x2 108 - 400 102 175 233 90 - 136 304 - 91 92 109 91 90x3 160 91 198 90x2 - 90x2 600 - 600
  180 -x2 600 - 198 135
n1 - 205 184 403 469 518 279 240 232 128 - 410 172 316 268 - 90 479 -x2 347 426 600 383 90x2 -x2 457 600 403 - 279 90
  469 211 469 340 -x2 469 402 333 378
n2 289 352 350 276 211 325 319 90 495 547 - 487 320 303 467 - 274 208 166 178 192 417 312 354 115 271 233 151 470 347
  94 - 213 225 574 - 574 240 496 191 574 310 336 510
n2d 506 600 420 488 205 215 600x2 205 340 - 525 333 600 429 - 600 502 168 195 485 600 402 477 225 327 364 188 261 598
  491 - 261 237 350 - 350 600 283 348 350 585 350 287
n4 350 548 130 548 318 503 345 232 431 428 272 461 307 442 460 415 252 162 -x2 370 584 213 490 255 329 438 193 326 232
  324 471 172 326 597 - 597 513 279 207 597 544 154 573
n4a -x8 485 -x8 485 -x2 484x2 441 -x11 399 - 361 462 -x2 361 -x3
n4d -x6 459 - 509 -x8 509 -x2 438 483 437 -x11 534 - 327 508 484 - 378 - 530 462
nvidia-tesla-p100 - 90 -x9 112 -x5 90 -x4 90 -x11 403 - 403 -x3 403 -x3
nvidia-tesla-p4 -x8 145 -x2 90 -x10 480 -x6 99 -x4 420 -x2 202 -x3 90 -x2
nvidia-tesla-t4 - 519 590 448 - 547 365 - 277 316 - 450 - 508 -x3 379 -x2 312 460 569 -x5 320 447 -x2 548 - 544 - 544
  504 -x2 544 343 300 432
nvidia-tesla-v100 - 185 -x20 358 -x11 547 - 547 -x3 547 -x3
t2a -x8 297 -x13 597 -x11 490 -x9
t2d 295 376 311 195 446 - 428 214 379 200 - 321 151 470 375 - 127 398 146 194 267 369 400 362 152 345 224 120 420 160
  184 - 314 138 497 - 497 443 299 185 497 293 350 378
z3 - 155 - 199 -x2 134 - 195 -x2 132 194 -x2 400 - 288 134 - 291 195 144 166 114 - 114 -x3 195 400 194 114 473 - 473
  133 496 114 473 114 -x2
"""

# Of a family that is not listed.
_USUAL_SPOT = 0.6


class FamilyPrice(msgspec.Struct, frozen=True, kw_only=True):
    """The price of a family in a region. A `guessed` one is derived from other regions or families."""

    cpu_usd: float
    memory_gb_usd: float
    gpu_usd: float
    spot_part: float
    guessed: bool = False


def family_price(family: str, region: str) -> FamilyPrice | None:
    """Return the price of a family in a region; None for an unknown family."""
    rates = _base().get(family)
    if rates is None:
        return None
    here, spot = _row(_ON_DEMAND, family), _row(_SPOT, family)
    factor = here.get(region)
    guessed = factor is None or region not in spot
    if factor is None:
        factor = _usual_factor(region)
    # A guess must not be too low.
    part = spot.get(region, max(spot.values(), default=_USUAL_SPOT))
    cpu, memory, gpu = (rate * factor for rate in rates)
    return FamilyPrice(cpu_usd=cpu, memory_gb_usd=memory, gpu_usd=gpu, spot_part=part, guessed=guessed)


@cache
def _usual_factor(region: str) -> float:
    """Return the median factor of the families that a region has; of an unknown region, of all regions."""
    rows = [_row(_ON_DEMAND, family) for family in _base()]
    here = [row[region] for row in rows if region in row] or [factor for row in rows for factor in row.values()]
    return statistics.median(here)


@cache
def _base() -> dict[str, tuple[float, float, float]]:
    words = iter(_BASE.split())
    return {family: (float(next(words)), float(next(words)), float(next(words))) for family in words}


@cache
def _tables(text: str) -> dict[str, list[str]]:
    rows: dict[str, list[str]] = {}
    for line in text.replace("\n  ", " ").strip().splitlines():
        family, *values = line.split()
        rows[family] = values
    return rows


@cache
def _row(text: str, family: str) -> dict[str, float]:
    """Return region → value of a family."""
    values: list[str] = []
    for word in _tables(text).get(family, []):
        value, _, times = word.partition("x")
        values += [value] * int(times or 1)
    pairs = zip(_REGIONS.split(), values, strict=True) if values else ()
    return {region: int(value) / 1000 for region, value in pairs if value != "-"}
