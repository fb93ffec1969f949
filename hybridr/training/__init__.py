"""Training: everything that fits weights, and the only package that imports torch.

DDR joins a Domain Adaption Module and a Relevance Estimation Module to one ranker (Zhan et al. 2022);
`objectives/` holds what training minimises, such as COCO-DR, MoDIR and BERM.
"""
