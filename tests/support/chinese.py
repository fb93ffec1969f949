"""Chinese texts made of a few words, and a small model whose vocabulary is characters."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from hybridr.encoders.export.model_files import write_model
from hybridr.training.torch_models import BiEncoder, Usage
from support.tiny import SPECIAL, tiny_bert

PLACES = ["北京", "上海", "广州", "成都", "西安"]
THINGS = ["混合搜索", "向量索引", "发动机", "图书馆", "天气预报", "火车时刻"]
DEEDS = ["的使用说明", "如何安装和配置", "为什么这样慢", "在冬天的变化", "是怎样建成的"]


NAMES = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏闰余成岁律吕调阳云腾致雨露结为霜金生丽水"


def texts() -> list[str]:
    """Every place, thing and deed once, with a name of two characters: a few hundred different bigrams."""
    random = np.random.default_rng(0)
    found = [f"{place}{thing}{deed}" for place in PLACES for thing in THINGS for deed in DEEDS]
    return [f"{text}，{''.join(random.choice(list(NAMES), 4))}。" for text in found]


def corpus(path: Path) -> Path:
    lines = [{"_id": str(number), "title": "", "text": text} for number, text in enumerate(texts())]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return path


def model_folder(folder: Path) -> Path:
    """A sentence-transformers folder as a user brings it: its card says `language: zh`, it has no graph.

    Its layers do little beside the characters themselves, so texts that share characters are near.
    """
    characters = sorted(set("".join(texts())))
    tokenizer = Tokenizer(
        models.WordPiece({word: i for i, word in enumerate([*SPECIAL, *characters])}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    torch.manual_seed(0)
    backbone = tiny_bert(len(characters), layers=1, inner=32, positions=64)
    with torch.no_grad():
        backbone.embeddings.word_embeddings.weight.copy_(
            torch.from_numpy(np.random.default_rng(0).normal(size=(len(SPECIAL) + len(characters), 32)))
        )
    folder.mkdir(parents=True)
    usage = Usage("mean", "cosine", {"query": "", "document": ""}, max_tokens=32)
    write_model(BiEncoder(backbone, tokenizer.to_str(), usage), folder)
    (folder / "README.md").write_text("---\nlanguage: zh\n---\n")
    return folder
