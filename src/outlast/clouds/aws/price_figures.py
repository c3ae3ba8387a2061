"""List prices of EC2's families by region, and usual spot prices as a part of them. Dated figures, no requests.

They are used if the Pricing API does not answer, and to select types before prices are requested.
"""

from __future__ import annotations

import statistics
from functools import cache

AS_OF = "2026-08-22"
GP3_USD_PER_GB_HOUR = 0.08 / 730
# Of a public IPv4 address.
ADDRESS_USD = 0.005

# The order of the figures below.
_REGIONS = """
af-south-1 ap-east-1 ap-northeast-1 ap-northeast-2 ap-northeast-3 ap-south-1 ap-southeast-1 ap-southeast-2
ap-southeast-3 ca-central-1 eu-central-1 eu-north-1 eu-south-1 eu-south-2 eu-west-1 eu-west-2 eu-west-3 me-central-1
us-east-1 us-east-2 us-west-1 us-west-2
"""

# Family → USD per hour and CPU in us-east-1, for families whose price is proportional to the CPUs.
_PER_CPU = """
c5 0.0425   c5a 0.0385   c6a 0.03825   c6i 0.0425   c7a 0.05132   c7i 0.044625   c7i-flex 0.042395   c8a 0.053888
c8i 0.046855   m5 0.048   m5a 0.043   m6a 0.0432   m6i 0.048   m7a 0.05796   m7i 0.0504   m7i-flex 0.04788   m8a
0.06086   m8i 0.05292   p3dn 0.325125   p4d 0.228725   p4de 0.285907   p5en 0.329667   p6-b200 0.5934   p6-b300
0.74175   r5 0.063   r5a 0.0565   r6a 0.0567   r6i 0.063   r7a 0.076077   r7i 0.06615   r8a 0.07988   r8i 0.06946
"""

# Type → USD per hour in us-east-1, for the other families.
_TYPES = """
g4dn.12xlarge 3.912   g4dn.16xlarge 4.352   g4dn.2xlarge 0.752   g4dn.4xlarge 1.204   g4dn.8xlarge 2.176   g4dn.xlarge
0.526   g5.12xlarge 5.672   g5.16xlarge 4.096   g5.24xlarge 8.144   g5.2xlarge 1.212   g5.48xlarge 16.288   g5.4xlarge
1.624   g5.8xlarge 2.448   g5.xlarge 1.006   g6.12xlarge 4.6016   g6.16xlarge 3.3968   g6.24xlarge 6.6752   g6.2xlarge
0.9776   g6.48xlarge 13.3504   g6.4xlarge 1.3232   g6.8xlarge 2.0144   g6.xlarge 0.8048   g6e.12xlarge 10.49264
g6e.16xlarge 7.57719   g6e.24xlarge 15.06559   g6e.2xlarge 2.24208   g6e.48xlarge 30.13118   g6e.4xlarge 3.00424
g6e.8xlarge 4.52856   g6e.xlarge 1.861   g7.12xlarge 7.12832   g7.24xlarge 14.25664   g7.2xlarge 2.52   g7.48xlarge
28.51328   g7.4xlarge 3.04208   g7.8xlarge 4.08624   g7e.12xlarge 8.28608   g7e.24xlarge 16.57216   g7e.2xlarge
3.36312   g7e.48xlarge 33.14432   g7e.4xlarge 3.99816   g7e.8xlarge 5.26824   gr6.4xlarge 1.5392   gr6.8xlarge 2.4464
p5.48xlarge 55.04   p5.4xlarge 6.88   t2.2xlarge 0.3712   t2.large 0.0928   t2.medium 0.0464   t2.micro 0.0116
t2.nano 0.0058   t2.small 0.023   t2.xlarge 0.1856   t3.2xlarge 0.3328   t3.large 0.0832   t3.medium 0.0416   t3.micro
0.0104   t3.nano 0.0052   t3.small 0.0208   t3.xlarge 0.1664   t3a.2xlarge 0.3008   t3a.large 0.0752   t3a.medium
0.0376   t3a.micro 0.0094   t3a.nano 0.0047   t3a.small 0.0188   t3a.xlarge 0.1504
"""

# Family → the price in each region in thousandths of the one in us-east-1; `-`: not sold there. `900x3`: three times.
_ON_DEMAND = """
c5 1341 1271 1259 1129 1259 1000 1153 1306 1153 1094 1141 1071 1188 1129x2 1188x2 1242 1000x2 1247 1000
c5a 1338 1260 1247 1117 - 610 1143 1299 - 1091 1130 1065 1182 - 1117 1182x2 - 1000x2 1234 1000
c6a - 1271 1259 -x2 611 1153 1306 - 1094 1141 -x3 1073 1188 -x2 1000x2 1247 1000
c6i 1341 1271 1259 1129 1259 1000 1153 1306 - 1094 1141 1071 1188 - 1073 1188x2 - 1000x2 1247 1000
c7a -x2 1259 -x3 1153 -x3 1141 1071 - 1073x2 1188 -x2 1000x2 1247 1000
c7i 1341 1271 1259 1129 1259 1000 1153 1306 1153 1094 1141 1071 1188 1073x2 1188x2 1202 1000x2 1247 1000
c7i-flex 1341 1271 1259 1129 - 1000 1153 1306 1153 1094 1141 1071 1188 1073x2 1188x2 - 1000x2 1247 1000
c8a -x2 1259 -x7 1141 -x2 1073x2 -x3 1000x2 - 1000
c8i 1341 - 1259 1129 - 1000 1153 1306 - 1094 1141 1071 - 1073x2 1188x2 - 1000x2 1247 1000
g4dn 1327 1540 1350 1230 1350 1101 1399 1300 - 1110 1250 1061 1171 - 1115 1170 1169 - 1000x2 1200 1000
g5 - 1540 1450 1230 - 1201 - 1300 1400 1110 1250 1061 - 1054 1116 1269x2 1227 1000x2 - 1000
g6 -x2 1450 1230 - 1201 - 1300 - 1110 1250 1061 - 1054 - 1269x2 1228 1000x2 - 1000
g6e -x2 1450 1229 1450 1201 -x4 1250 1061 - 1054 -x3 1227 1000x2 - 1000
g7 -x13 1050 -x4 1000x2 - 1000
g7e -x2 1450 1229 - 1633 -x4 1701 1443 - 1054 - 1738 -x2 1000x2 - 1000
gr6 -x2 1450 1230 - 1201 - 1300 - 1110 1251 1061 - 1054 - 1269x2 - 1000x2 - 1000
m5 1323 1375 1292 1229 1292 1052 1250x3 1115 1198 1062 1167 1115x2 1156 1167 1226 1000x2 1167 1000
m5a -x2 1302 1233 - 646 1256x2 - 1116 1209 - 1174 - 1116 1163 1174 - 1000x2 1174 1000
m6a -x2 1292 -x2 643 1250x2 - 1115 1198 - 1167 - 1115 1156 1167 - 1000x2 1167 1000
m6i 1323 1375 1292 1229 1292 1052 1250x3 1115 1198 1062 1167 - 1115 1156 1167 1226 1000x2 1167 1000
m7a -x2 1292 -x4 1250 -x2 1198 1062 - 1115x2 1156 -x2 1000x2 - 1000
m7i 1323 1375 1292 1229 1292 1052 1250x3 1115 1198 1062 1167 1115x2 1156 1167 1226 1000x2 1167 1000
m7i-flex - 1375 1292 1229 1292 1052 1250x3 1115 1198 1063 - 1115x2 1156 1167 - 1000x2 1167 1000
m8a -x2 1292 -x2 1052 -x4 1198 -x2 1115x2 -x3 1000x2 - 1000
m8i 1323 - 1292 1229 - 1052 1250x2 - 1115 1198 -x2 1115x2 1156 1167 - 1000x2 1167 1000
p3dn -x2 1371 -x11 1080 -x3 1000 -x2 1000
p4d -x2 1371 1385 - 1200 - 1300 - 1150 1249 1080 -x2 1080 1300 -x2 1000x2 - 1000
p4de -x2 1371 -x3 1200 -x3 1249 -x7 1000 -x2 1000
p5 -x2 1250 1380 - 1200 - 1300 1380 1150 - 1070 -x3 1300 -x2 1000x2 1250 1000
p5en -x2 1250 1380 - 1200 -x2 1380 -x2 1070 - 1080 -x3 1200 1000x2 1250 1000
p6-b200 -x5 1410 -x12 1000x2 - 1000
p6-b300 -x3 1469 -x14 1000 -x2 1000
r5 1333 1325 1206x3 1032 1206 1198 1206 1095 1206 1063 1175 1119x2 1175x2 1231 1000x2 1111 1000
r5a -x2 1212 1204 - 633 1204x2 - 1097 1212 - 1177 - 1124 1177x2 - 1000x2 1115 1000
r6a -x2 1206 -x2 631 1206 1198 - 1095 1206 -x3 1119 1175 -x2 1000x2 1111 1000
r6i 1333 1325 1206x3 1032 1206 1198 - 1095 1206 1063 1175 - 1119 1175x2 1231 1000x2 1111 1000
r7a -x2 1206 -x7 1206 1063 - 1119x2 -x3 1000x2 - 1000
r7i -x2 1206x3 1032 1206 1198 1206 1095 1206 1063 1175 1119x2 1175x2 - 1000x2 1111 1000
r8a -x2 1206 -x6 1095 1206 -x2 1119x2 -x3 1000x2 - 1000
r8i 1333 - 1206x2 - 1032 1206 1198 - 1095 1206 1063 1175 1119x2 1175x2 1231 1000x2 1111 1000
t2 -x2 1310 1241 1310 1069 1259x2 - 1103 1155 -x3 1086 1138x2 - 1000x2 1190 1000
t3 1304 1404 1308 1250 1308 1077 1269x3 1115 1154 1038 1152 1096x2 1135x2 - 1000x2 1192 1000
t3a -x2 1302 1245 - 656 1255 1264 - 1110 1149 - 1147 - 1085 1130x2 - 1000x2 1188 1000
"""

# Family with GPUs → the highest spot price among the zones of each region, in thousandths of on demand.
_GPU_SPOT = """
g4dn 1000 560 552 626 437 430 453 692 - 416 503 454 593 - 631 354 383 - 711 376 569 442
g5 - 1000 1000 393 - 981 - 1000 1000x3 364 - 468 888 1000 503 410 1000 595 - 843
g6 -x2 451 405 - 991 - 1000 - 1000 499 321 - 370 - 1000 356 410 1000 359 - 938
g6e -x2 463 471 564 991 -x4 1000 940 - 1000 -x3 410 1000 736 - 843
g7 -x13 596 -x4 383 187 - 387
g7e -x2 480 1000 - 984 -x4 529 940 - 468 - 421 -x2 675 456 - 1000
gr6 -x2 342 196 - 250 - 461 - 301 410 235 - 321 - 300 280 - 779 279 - 397
p3dn -x2 185 -x11 132 -x3 149 -x2 306
p4d -x2 1000 423 - 991 - 881 - 1000 1000 345 -x2 654 1000 -x2 894 905 - 830
p4de -x2 357 -x3 1000 -x3 1000 -x7 885 -x2 789
p5 -x2 343 -x2 301 - 1000x2 679 - 326 -x3 1000 -x2 547 383 645 383
p5en -x2 382 171 - 333 -x2 338 -x2 940 - 327 -x4 428 426 1000 428
p6-b200 -x5 306 -x12 368 371 - 368
p6-b300 -x3 191 -x14 314 -x2 362
"""

# Other family → a spot price that one zone in ten exceeds, as a part of on demand.
_SPOT = """
c5 0.43   c5a 0.52   c6a 0.5   c6i 0.48   c7a 0.46   c7i 0.46   c7i-flex 0.48   c8a 0.51   c8i 0.48   m5 0.43   m5a
0.55   m6a 0.51   m6i 0.48   m7a 0.45   m7i 0.47   m7i-flex 0.48   m8a 0.46   m8i 0.46   r5 0.43   r5a 0.5   r6a 0.49
r6i 0.48   r7a 0.45   r7i 0.45   r8a 0.47   r8i 0.46   t2 0.44   t3 0.43   t3a 0.52
"""

# Class of an unknown family → USD per hour and CPU.
_USUAL_PER_CPU = {"c": 0.047, "m": 0.055, "r": 0.072}
_USUAL_SPOT_PART = 0.6


def on_demand_figure(type: str, region: str, *, cpus: float) -> tuple[float, bool] | None:
    """Return the price per hour, and whether it is guessed; None for a type whose price cannot be guessed."""
    family = type.partition(".")[0]
    factors = _row(_ON_DEMAND, family)
    guessed = region not in factors
    factor = factors.get(region) or _usual_factor(region)
    if type in _numbers(_TYPES):
        usd = _numbers(_TYPES)[type]
    elif family in _numbers(_PER_CPU):
        usd = _numbers(_PER_CPU)[family] * cpus
    elif family[:1] in _USUAL_PER_CPU:
        usd, guessed = _USUAL_PER_CPU[family[:1]] * cpus, True
    else:
        return None
    return round(usd * factor, 6), guessed


def spot_figure(type: str, region: str, *, cpus: float) -> float | None:
    """Return a spot price per hour that is mostly not exceeded. It is always a guess: spot prices change every hour."""
    full = on_demand_figure(type, region, cpus=cpus)
    if full is None:
        return None
    family = type.partition(".")[0]
    here = _row(_GPU_SPOT, family)
    part = here.get(region) or max(here.values(), default=_numbers(_SPOT).get(family, _USUAL_SPOT_PART))
    return round(full[0] * part, 6)


@cache
def _usual_factor(region: str) -> float:
    """Return the median factor of the families that a region has; of an unknown region, of all regions."""
    rows = [_row(_ON_DEMAND, family) for family in _tables(_ON_DEMAND)]
    here = [row[region] for row in rows if region in row] or [factor for row in rows for factor in row.values()]
    return statistics.median(here)


@cache
def _numbers(text: str) -> dict[str, float]:
    words = iter(text.split())
    return {name: float(next(words)) for name in words}


@cache
def _tables(text: str) -> dict[str, list[str]]:
    lines = text.replace("\n  ", " ").strip().splitlines()
    return {family: values for family, *values in map(str.split, lines)}


@cache
def _row(text: str, family: str) -> dict[str, float]:
    """Return region → value of a family."""
    values: list[str] = []
    for word in _tables(text).get(family, []):
        value, _, times = word.partition("x")
        values += [value] * int(times or 1)
    pairs = zip(_REGIONS.split(), values, strict=True) if values else ()
    return {region: int(value) / 1000 for region, value in pairs if value != "-"}
