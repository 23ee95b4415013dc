"""The method as pure tensor code: nothing here imports transformers or any other part of ebft.

Read in this order, which is the order data flows in: layout (anchors, packed order, mask rule), sampling, rewards,
losses and cross_entropy; metrics stand at the end.

Shape suffixes used throughout: b batch, T context tokens, B anchors, n samples, G tokens of a completion
(the horizon), S = T + B*n*G packed tokens, D features, H the model's hidden width, V vocabulary, R rows.
"""
