"""Languages of texts: on samples written here, and on the open collections."""

import json
import random

import pytest

from hybridr.languages import (
    ANALYZERS,
    analyzer_for,
    first_words,
    foreign_language,
    guess_language,
    identifier,
    language_of,
    makes_latin_terms,
    middle_words,
    word_count,
)

SAMPLES = {
    "en": "The engine of the old boat was loud, and we could not hear what the captain said to us.",
    "de": "Der Motor des alten Bootes war laut, und wir konnten nicht hören, was der Kapitän sagte.",
    "fr": "Le moteur du vieux bateau était bruyant et nous ne pouvions pas entendre le capitaine.",
    "es": "El motor del viejo barco era ruidoso y no podíamos oír lo que decía el capitán en el puente.",
    "it": "Il motore della vecchia barca era rumoroso e non potevamo sentire quello che diceva il capitano.",
    "pt": "O motor do velho barco era barulhento e não podíamos ouvir o que o capitão dizia na ponte.",
    "nl": "De motor van de oude boot was luid en wij konden niet horen wat de kapitein op de brug zei.",
    "sv": "Motorn i den gamla båten var högljudd och vi kunde inte höra vad kaptenen sade från bryggan.",
    "da": "Motoren i den gamle båd var meget støjende, og vi kunne ikke høre, hvad kaptajnen sagde.",
    "fi": "Vanhan veneen moottori oli niin kovaääninen, että emme kuulleet, mitä kapteeni sanoi.",
    "hu": "A régi hajó motorja hangos volt, és nem hallottuk, hogy mit mond a kapitány a hídon.",
    "ro": "Motorul bărcii vechi era zgomotos și nu am putut auzi ce spune căpitanul care este pe punte.",
    "cs": "Motor staré lodi byl hlučný a my jsme neslyšeli, co kapitán říká, protože spal.",
    "pl": "Silnik starej łodzi był głośny i nie słyszeliśmy, co mówi kapitan, który jest na mostku od rana.",
    "tr": "Eski teknenin motoru çok gürültülüydü ve kaptanın ne dediğini bir türlü duyamadık.",
    "id": "Mesin kapal tua itu berisik dan kami tidak dapat mendengar apa yang dikatakan oleh kapten.",
    "zh": "旧船的发动机声音很大,我们听不见船长在驾驶台上说了什么。",
    "ja": "古い船のエンジンはうるさくて、船長がブリッジで何を言ったのか聞こえませんでした。",
    "ko": "낡은 배의 엔진이 시끄러워서 선장이 함교에서 무슨 말을 했는지 들을 수 없었다.",
    "ru": "Двигатель старой лодки был очень громким, и мы не слышали, что говорил капитан, когда вышел.",
    "uk": "Двигун старого човна був гучний, і ми не чули, що казав капітан на містку під час їхньої розмови.",
    "bg": "Двигателят на старата лодка беше шумен и не можехме да чуем какво казва капитанът на мостика.",
    "el": "Η μηχανή του παλιού σκάφους ήταν θορυβώδης και δεν ακούγαμε τι έλεγε ο καπετάνιος.",
    "ar": "كان محرك القارب القديم صاخبا ولم نتمكن من سماع ما قاله القبطان على الجسر.",
    "fa": "موتور قایق قدیمی پر سر و صدا بود و ما نمی‌توانستیم بشنویم که ناخدا چه می‌گفت و گوش می‌کردیم.",
    "th": "เครื่องยนต์ของเรือเก่ามีเสียงดังมาก เราจึงไม่ได้ยินสิ่งที่กัปตันพูด",
    "hi": "पुरानी नाव का इंजन बहुत शोर कर रहा था और हम कप्तान की बात नहीं सुन सके।",
    "he": "המנוע של הסירה הישנה היה רועש ולא יכולנו לשמוע מה אמר רב החובל.",
}


@pytest.mark.parametrize("code", SAMPLES)
def test_samples(code):
    assert language_of(SAMPLES[code]) == code


@pytest.mark.parametrize(
    "text",
    ["", "   ", "1234 5678", "?!", "E 0x7f", "lambda x: x + 1", "Bundesrat", "Ωμέγα3 alpha beta gamma"],
)
def test_what_cannot_be_told_is_not_guessed(text):
    assert language_of(text) == "und"


def test_chinese_with_english_terms_is_chinese():
    assert language_of("使用 OpenSearch 进行混合搜索和重新索引") == "zh"
    assert language_of("在 Kubernetes 上部署 OpenSearch 集群的步骤") == "zh"


def test_chinese_that_quotes_one_japanese_word_is_chinese():
    assert language_of("这本书介绍了日本的の字用法以及在现代汉语广告语言之中的流行与传播情况和历史") == "zh"


def test_the_majority_wins_and_its_share_is_told():
    assert guess_language([SAMPLES["de"]] * 3 + [SAMPLES["en"], "12345", ""]) == ("de", 0.75, 4)


def test_titles_are_read_together_when_none_tells_alone():
    assert guess_language(["Theory of games", "Notes on sets", "Limits for sums"]) == ("en", 1.0, 0)


def test_no_texts():
    assert guess_language([]) == ("und", 0.0, 0)
    assert guess_language(["", "42"]) == ("und", 0.0, 0)


ANALYZERS_BY_CODE = {
    **{"en": "english", "de": "german", "fr": "french", "zh": "cjk", "ja": "cjk", "ko": "cjk", "th": "thai"},
    **{"pt": "portuguese", "pt-BR": "brazilian", "pt_br": "brazilian", "de-AT": "german"},
    **dict.fromkeys(["pl", "he", "und", ""], "standard"),
}


@pytest.mark.parametrize(("code", "analyzer"), ANALYZERS_BY_CODE.items())
def test_analyzers(code, analyzer):
    assert analyzer_for(code) == analyzer


def test_every_language_that_is_guessed_has_an_analyser_or_is_known_to_have_none():
    assert set(ANALYZERS) - set(identifier().labels) == {"nb", "pt-br", "ckb"}
    assert set(SAMPLES) - set(ANALYZERS) == {"pl", "uk", "he"}


@pytest.mark.parametrize(
    ("name", "code"),
    [(name, "en") for name in "cranfield npl scifact cosqa tldr_cmd".split()]
    + [(name, "zh") for name in "cmrc_drcd_zh qbqtc_zh xquad_zh".split()],
)
def test_collections(collection, name, code):
    lines = (collection(name) / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:500]
    records = [json.loads(line) for line in lines]
    guess = guess_language(f"{record['title']} {record['text']}" for record in records)
    assert guess.code == code
    assert guess.share > 0.9
    assert guess.texts > 0.6 * len(records)


def english(code):
    return code == "en"


ENGLISH = (
    "cacm cisi cosqa cranfield fiqa_mini lisa npl nq_oracle scifact squadshifts_amazon stackfaq tldr_cmd"
)


@pytest.mark.parametrize("name", ENGLISH.split())
def test_no_english_collection_is_foreign_to_an_english_encoder(collection, name):
    found = foreign_language(sample_of(collection(name)), english)
    assert found.share < 0.05  # two thirds are refused
    assert found.texts > 190


@pytest.mark.parametrize("name", ["xquad_zh", "qbqtc_zh", "cmrc_drcd_zh"])
def test_chinese_is_foreign_to_an_english_encoder_and_to_no_chinese_one(collection, name):
    texts = sample_of(collection(name))
    assert foreign_language(texts, english).code == "zh"
    assert foreign_language(texts, english).share > 0.9
    assert foreign_language(texts, lambda code: code == "zh").share < 0.1


def sample_of(folder):
    lines = (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in random.Random(13).sample(lines, min(200, len(lines)))]
    return [f"{record['title']} {record['text']}" for record in records]


def test_what_cannot_be_told_speaks_for_nothing():
    code = ["for i in range(10): print(i)", "SELECT a, b FROM t WHERE a = 1", "x = y + 1"]
    products = ["Bosch GSR 12V-15", "Damenschuhe rot 38", "USB-C Kabel 2 m"]
    mixed = [SAMPLES["de"]] * 10 + [SAMPLES["en"]] * 10
    assert foreign_language(code + products, english) == ("und", 0.0, 6)
    assert foreign_language(mixed, english) == ("de", 0.5, 20)
    assert foreign_language([SAMPLES["de"]] + products * 3, english).share == 0.1
    assert foreign_language([], english) == foreign_language(["", " "], english) == ("und", 0.0, 0)


def test_terms_are_plain_by_analyser_then_by_script() -> None:
    assert makes_latin_terms("english", "café")
    assert not makes_latin_terms("cjk", "covid")
    assert not makes_latin_terms("russian", "вирус")
    assert not makes_latin_terms("french", "cafe")
    assert makes_latin_terms("standard", "what is it")
    assert makes_latin_terms("my_own", "2019")
    assert not makes_latin_terms("standard", "病毒")
    assert not makes_latin_terms("smartcn", "病毒 covid")


def test_the_middle_of_a_text_is_a_few_words_whatever_the_script() -> None:
    words = [f"word{number}" for number in range(20)]
    assert middle_words(" \n ".join(words)) == " ".join(words[7:12])
    assert middle_words("two words") == "two words"
    chinese = "北京是中华人民共和国的首都和直辖市，也是全国的政治和文化中心。"
    assert len(middle_words(chinese)) <= 10
    assert middle_words(chinese) in chinese
    assert middle_words("") == ""


def test_words_are_counted_in_any_script() -> None:
    chinese = "北京是中华人民共和国的首都"
    assert word_count("Deep sea, cold") == 3
    assert word_count(chinese) == 7
    assert word_count("GPU 显卡驱动") == 3
    assert first_words(chinese, 3) == "北京是中华人"
    assert first_words(" a  b\nc d", 3) == "a b c"
    assert first_words("", 3) == ""
