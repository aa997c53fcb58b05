"""What the Prometheus operator is asked to scrape is what pods serve; traces go where wanted."""

from __future__ import annotations

from tests.chart.rendering import environment, matches, named, of_kind, pods, render

MONITORED = {"metrics": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}}
ENDPOINT = "http://collector.tracing:4318"


def test_every_component_is_scraped_on_a_port_that_it_has() -> None:
    objects = render("prod", values=MONITORED)
    scraped = set()
    for monitor in of_kind(objects, "ServiceMonitor", "PodMonitor"):
        spec = monitor["spec"]
        (endpoint,) = spec.get("endpoints") or spec["podMetricsEndpoints"]
        assert endpoint["path"] == "/metrics"
        if monitor["kind"] == "PodMonitor":
            found = [
                (name, pod)
                for name, meta, pod in pods(objects)
                if matches(spec["selector"], meta["labels"])
            ]
        else:
            services = [
                each
                for each in of_kind(objects, "Service")
                if matches(spec["selector"], each["metadata"]["labels"])
            ]
            assert services, monitor["metadata"]["name"]
            found = [
                (name, pod)
                for name, meta, pod in pods(objects)
                for service in services
                if matches({"matchLabels": service["spec"]["selector"]}, meta["labels"])
                and endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
            ]
        assert found, monitor["metadata"]["name"]
        for name, pod in found:
            ports = {port["name"] for port in pod["containers"][0]["ports"]}
            assert endpoint["port"] in ports, name
            scraped.add(name.partition("-")[2])
    assert {name.split("-")[1] for name in scraped} == {"api", "worker", "engine"}


def test_traces_go_where_they_are_wanted_and_nowhere_by_default() -> None:
    def told(objects: list[dict[str, object]], end: str) -> dict[str, object]:
        pod = named(objects, "Deployment", end)["spec"]["template"]["spec"]
        return environment(pod["containers"][0])

    wanted = render("prod", values={"tracing": {"endpoint": ENDPOINT, "sampleRatio": 0.25}})
    for end in ("-api", "engine-llama-8b"):
        found = told(wanted, end)
        assert found["OTEL_EXPORTER_OTLP_ENDPOINT"] == ENDPOINT
        assert found["OTEL_TRACES_SAMPLER_ARG"] == "0.25"
        assert not any(name.startswith("OTEL_") for name in told(render("prod"), end))


def test_tenants_with_series_of_their_own_are_as_many_as_wanted() -> None:
    objects = render("prod", values={"metrics": {"topTenants": 7}})
    pod = named(objects, "Deployment", "-api")["spec"]["template"]["spec"]
    assert environment(pod["containers"][0])["TENFOLD_METRICS_TOP_TENANTS"] == "7"
