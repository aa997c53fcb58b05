// Prints, as a JSON list, what the operators' own schemas say against the objects on standard input.
import { readFileSync } from "node:fs";

const PACKAGES = {
  "keda.sh": "keda",
  "gateway.networking.k8s.io": "gateway-api",
  "monitoring.coreos.com": "prometheus-operator",
  "external-secrets.io": "external-secrets",
};

const refusals = [];
for (const object of JSON.parse(readFileSync(0, "utf8"))) {
  const [group, version] = object.apiVersion.split("/");
  const models = await import(`@kubernetes-models/${PACKAGES[group]}/${group}/${version}`);
  try {
    new models[object.kind](object).validate();
  } catch (error) {
    refusals.push(`${object.kind} ${object.metadata.name}: ${error.message}`);
  }
}
console.log(JSON.stringify(refusals));
