"""Slips of the thesis that change what a run does, each with the derivation of what is used instead."""

from __future__ import annotations

SPIDER_PERIOD = """\
Its period q is too long as printed. With eta = 1/(2 beta), h the estimate and e = h - grad F0 (f1 = 0, M \
= N, K = n), smoothness gives F(w_(r+1)) <= F(w_r) - (eta/2) |grad F|^2 - (eta/4) |h|^2 + (eta/2) |e|^2. \
Within a phase e is a sum of independent noises, so E|e_r|^2 = tau_1^2 + eta^2 tau_2^2 (sum of E|h|^2 \
since the phase began), tau_1^2 = d sigma_1^2/M and tau_2^2 = d sigma_2^2/M per unit of |w_r - w_(r-1)|^2. \
Summed over R rounds the |h|^2 cancel where q eta^2 tau_2^2 <= 1/2, which is within the q <= 1/(eta^2 \
tau_2^2) of the proof, and then the mean of |grad F|^2 is at most 4 beta Delta/R + tau_1^2. With the \
theorem's sigma_2 and R = a sqrt(q Delta beta)/L, a = eps n sqrt M/sqrt(d ln(1/delta)), q eta^2 tau_2^2 is \
4 q^(3/2) sqrt(Delta beta)/(a L): so q <= (a L/(8 sqrt(Delta beta)))^(2/3). The thesis prints (a \
L/sqrt(Delta beta))^(2/3), at which q eta^2 tau_2^2 = 4 whatever the numbers are: errors of a phase feed \
themselves and grow by up to e^4. fedsim takes the former, which makes the bound 40 times (sqrt(L Delta \
beta)/a)^(4/3)."""
