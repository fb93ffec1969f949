"""Every file that an embedded node is made of: Maven coordinates, sha256 and size, pinned here only.

Not every OpenSearch version has every file in the public repository; these have. The 3.6.0 distribution
holds all its modules; that of 2.19.1 holds only its transport, so that `MODULES` lists the others, with
what the descriptor of each must say.
"""

from __future__ import annotations

from typing import NamedTuple


class Artifact(NamedTuple):
    """One file of a Maven repository; `size` in bytes."""

    group: str
    name: str
    version: str
    packaging: str
    sha256: str
    size: int
    classifier: str = ""

    @property
    def file_name(self) -> str:
        """Name the file as the repository does."""
        variant = f"-{self.classifier}" if self.classifier else ""
        return f"{self.name}-{self.version}{variant}.{self.packaging}"

    @property
    def coordinates(self) -> str:
        """Name the artifact as Maven does, `group:name:version:packaging[:classifier]`."""
        variant = f":{self.classifier}" if self.classifier else ""
        return f"{self.group}:{self.name}:{self.version}:{self.packaging}{variant}"


class Module(NamedTuple):
    """A module that is laid out by hand; `policy` is what the security manager is to allow it."""

    classname: str
    jars: tuple[Artifact, ...]
    extends: tuple[str, ...] = ()
    policy: str = ""


def pinned(coordinates: str, size: int, sha256: str) -> Artifact:
    """Read one line of the tables below."""
    group, name, version, packaging, *classifier = coordinates.split(":")
    return Artifact(group, name, version, packaging, sha256, size, *classifier)


DISTRIBUTIONS = {
    "3.6.0": pinned(
        "org.opensearch.distribution.integ-test-zip:opensearch:3.6.0:zip",
        161_609_640,
        "a91faa1dc1cadc78cb278b4f63847e19e1627a4e9de698e14e7efc14ee37b286",
    ),
    "2.19.1": pinned(
        "org.opensearch.distribution.integ-test-zip:opensearch:2.19.1:zip",
        51_391_430,
        "af7152d8b7f6f1cee09d47276b32b70479fe6dd8cdbb61213f84eb7f8098b261",
    ),
}

PLUGINS = {
    "3.6.0": {
        "opensearch-knn": pinned(
            "org.opensearch.plugin:opensearch-knn:3.6.0.0:zip",
            6_015_541,
            "ac392ca28a39b3bf290648a422ef30cb149dda2963a9d7feb26060e932341c9a",
        ),
        "opensearch-neural-search": pinned(
            "org.opensearch.plugin:neural-search:3.6.0.0:zip",
            12_095_213,
            "6ef1b206e79391e2e36268e32dc34d27fd8b8a59a8eb0a7393c97d53b038e433",
        ),
        "opensearch-job-scheduler": pinned(
            "org.opensearch.plugin:opensearch-job-scheduler:3.6.0.0:zip",
            368_626,
            "f81d0aa9fc850b18f803292bd7ae68bd33561f6c1d12db0f68529d40eddcee24",
        ),
        "opensearch-ml": pinned(
            "org.opensearch.plugin:opensearch-ml-plugin:3.6.0.0:zip",
            390_566_619,
            "c051d436fe1936da1477bb999db829eb2bc92b12989e376c300d0a874fb90f9d",
        ),
    },
    "2.19.1": {
        "opensearch-knn": pinned(
            "org.opensearch.plugin:opensearch-knn:2.19.1.0:zip",
            5_888_095,
            "eab8c9818865bc035212eab5068cdacae164baa09d4c152f49b736d6f6b0e85c",
        ),
        "opensearch-neural-search": pinned(
            "org.opensearch.plugin:neural-search:2.19.1.0:zip",
            8_434_600,
            "b17ca1d774692902c58cbae102bf463970740c31d81446866e8eabd336e285aa",
        ),
        "opensearch-job-scheduler": pinned(
            "org.opensearch.plugin:opensearch-job-scheduler:2.19.1.0:zip",
            3_318_495,
            "a54e12582b88a4c173d6e58b16fbc609df12a04eff010ae30396905a1a882bf6",
        ),
        "opensearch-security": pinned(
            "org.opensearch.plugin:opensearch-security:2.19.1.0:zip",
            43_828_219,
            "94a04f12ac6033902209fac1e4e512618d45beee604bbf0e42c3ed79c55220cf",
        ),
    },
}

PAINLESS_POLICY = """\
grant {
  permission java.lang.RuntimePermission "createClassLoader";
  permission java.lang.RuntimePermission "getClassLoader";
};
"""
REINDEX_POLICY = """\
grant {
  permission java.net.SocketPermission "*", "connect";
};
grant codeBase "${codebase.opensearch-rest-client}" {
  permission java.net.NetPermission "getProxySelector";
};
grant codeBase "${codebase.httpasyncclient}" {
  permission java.net.NetPermission "getProxySelector";
};
"""

MODULES: dict[str, dict[str, Module]] = {
    "3.6.0": {},
    "2.19.1": {
        "lang-painless": Module(
            "org.opensearch.painless.PainlessPlugin",
            (
                pinned(
                    "org.opensearch.plugin:lang-painless:2.19.1:jar",
                    719_758,
                    "3cf5e02efa40ff5b88e74e1ab66a0bc462de3509fab4a6a4ffe90b8d13777a9a",
                ),
                pinned(
                    "org.opensearch.plugin:opensearch-scripting-painless-spi:2.19.1:jar",
                    30_407,
                    "c2598797a5f6f897ce7e8d05f593ff96de3fbc56c52f299d63cddcae41556dda",
                ),
                pinned(
                    "org.antlr:antlr4-runtime:4.13.1:jar",
                    326_305,
                    "54665d2838cc66458343468efc539e454fc95b46a8a04b13c6ac43fc9be63505",
                ),
                pinned(
                    "org.ow2.asm:asm:9.7:jar",
                    125_428,
                    "adf46d5e34940bdf148ecdd26a9ee8eea94496a72034ff7141066b3eea5c4e9d",
                ),
                pinned(
                    "org.ow2.asm:asm-util:9.7:jar",
                    93_784,
                    "37a6414d36641973f1af104937c95d6d921b2ddb4d612c66c5a9f2b13fc14211",
                ),
                pinned(
                    "org.ow2.asm:asm-tree:9.7:jar",
                    51_934,
                    "62f4b3bc436045c1acb5c3ba2d8ec556ec3369093d7f5d06c747eb04b56d52b1",
                ),
                pinned(
                    "org.ow2.asm:asm-commons:9.7:jar",
                    73_426,
                    "389bc247958e049fc9a0408d398c92c6d370c18035120395d4cba1d9d9304b7a",
                ),
                pinned(
                    "org.ow2.asm:asm-analysis:9.7:jar",
                    34_776,
                    "7bc6bcbc21379948a0c8c467fb0f864206e5b818f6bc0b546872f5c9f941556f",
                ),
            ),
            policy=PAINLESS_POLICY,
        ),
        "analysis-common": Module(
            "org.opensearch.analysis.common.CommonAnalysisPlugin",
            (
                pinned(
                    "org.opensearch.plugin:analysis-common:2.19.1:jar",
                    199_627,
                    "13fdc1071af42946b13153a62491a5e9b0ad214d44f7c8153d3afef60f558821",
                ),
            ),
            extends=("lang-painless",),
        ),
        "mapper-extras": Module(
            "org.opensearch.index.mapper.MapperExtrasPlugin",
            (
                pinned(
                    "org.opensearch.plugin:mapper-extras-client:2.19.1:jar",
                    84_960,
                    "93e85f305ddc3070fea5b83cc8d962bdcd30df20638352b02cf57276cc2bc5d5",
                ),
            ),
        ),
        "aggs-matrix-stats": Module(
            "org.opensearch.search.aggregations.matrix.MatrixAggregationPlugin",
            (
                pinned(
                    "org.opensearch.plugin:aggs-matrix-stats-client:2.19.1:jar",
                    57_672,
                    "0d35063d4c80964556e75e5ba54aca092c7c086a5aef94a165e29c57c3b01dd0",
                ),
            ),
        ),
        "parent-join": Module(
            "org.opensearch.join.ParentJoinPlugin",
            (
                pinned(
                    "org.opensearch.plugin:parent-join-client:2.19.1:jar",
                    87_627,
                    "e123e5f953b5d49ae64a2e997b1adc4c50169c5270dfd2326f616bd89bef08c5",
                ),
            ),
        ),
        "reindex": Module(
            "org.opensearch.index.reindex.ReindexPlugin",
            (
                pinned(
                    "org.opensearch.plugin:reindex-client:2.19.1:jar",
                    122_355,
                    "eb2056ee54ac367f8820d5c13fa5cea2d10bb492b01f4d1a15a6dce163bf82ce",
                ),
                pinned(
                    "org.opensearch.client:opensearch-rest-client:2.19.1:jar",
                    93_850,
                    "6ab691dc6cb2c12802bb9024df3379bd1779a2b626d3bd7b27ed5f974cbc1708",
                ),
                pinned(
                    "org.opensearch:opensearch-ssl-config:2.19.1:jar",
                    68_124,
                    "30fe6a20a08004044be90abdf0e711313b7dfe2e5c7b12ac32498ae8e1cae927",
                ),
                pinned(
                    "org.apache.httpcomponents:httpclient:4.5.14:jar",
                    785_639,
                    "c8bc7e1c51a6d4ce72f40d2ebbabf1c4b68bfe76e732104b04381b493478e9d6",
                ),
                pinned(
                    "org.apache.httpcomponents:httpasyncclient:4.1.5:jar",
                    181_512,
                    "0c1877489a9d1ba4fa50f6cfcab11d1123618858cb31d56afaab5afdd5064d99",
                ),
                pinned(
                    "org.apache.httpcomponents:httpcore:4.4.16:jar",
                    327_891,
                    "6c9b3dd142a09dc468e23ad39aad6f75a0f2b85125104469f026e52a474e464f",
                ),
                pinned(
                    "org.apache.httpcomponents:httpcore-nio:4.4.16:jar",
                    368_896,
                    "4018736ede2d321034e8517ea90baefb31831a8608afccc446d8a699fb1d00d4",
                ),
                pinned(
                    "commons-logging:commons-logging:1.2:jar",
                    61_829,
                    "daddea1ea0be0f56978ab3006b8ac92834afeefbd9b7e4e6316fca57df0fa636",
                ),
                pinned(
                    "commons-codec:commons-codec:1.15:jar",
                    353_793,
                    "b3e9f6d63a790109bf0d056611fbed1cf69055826defeb9894a71369d246ed63",
                ),
            ),
            policy=REINDEX_POLICY,
        ),
    },
}

# A Java runtime without Thai word breaking cannot build any index: "Failed to build analyzers: [thai]".
WORD_BREAKING = (
    pinned(
        "com.ibm.icu:icu4j:77.1:jar",
        14_663_227,
        "b3640b9f416a4411fd33c59abbeea8fd57d024c23e1819bf9673220a97499fe3",
    ),
    pinned(
        "com.ibm.icu:icu4j-localespi:77.1:jar",
        50_797,
        "77d0da4f10c6158174cc3dafbb51356031a09e0fcaaf0432330afb4fb552cac9",
    ),
)

# What ml-commons needs to run a model inside the node and would download itself, from a host of its makers:
# PyTorch's libraries, and the bridge from Java to them. Its Java part is DJL 0.31.1, whose bridge is not in
# the repository; that of 0.32.0 for the same PyTorch fits.
PYTORCH = pinned(
    "ai.djl.pytorch:pytorch-native-cpu:2.5.1:jar:linux-x86_64",
    109_602_264,
    "9c4f35fb64cb3fba34340b432c648e1bea044adeee554b473d5882499b16f0a4",
)
PYTORCH_BRIDGE = pinned(
    "ai.djl.pytorch:pytorch-jni:2.5.1-0.32.0:jar",
    4_931_626,
    "342bde24382eef06e93a2461fd8f293e5c2c6c72caca7d66019d0a9447d96265",
)
