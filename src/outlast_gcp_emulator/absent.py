"""Google's services that this server does not emulate: their requests are refused here and never reach Google.

Without this, gcloud would send its requests for these services, with a token of this server, to the real Google.
"""

from __future__ import annotations

from outlast_gcp_emulator.errors import ApiError
from outlast_gcp_emulator.http_types import HttpRequest, HttpResponse
from outlast_gcp_emulator.router import Router

PATH = "not-emulated"
# gcloud's names of services, as in `gcloud topic configurations`, section `api_endpoint_overrides`.
_TEXT = """
accessapproval accesscontextmanager ai aiplatform alloydb anthosevents anthospolicycontrollerstatus_pa
apigateway apigee apihub apikeys appconfigmanager appengine apphub artifactregistry assuredworkloads
auditmanager authztoolkit backupdr baremetalsolution batch beyondcorp bigquery bigquerymigration bigtableadmin
binaryauthorization categorymanager certificatemanager cloudaicompanion cloudasset cloudbilling cloudbuild
cloudcommerceconsumerprocurement clouddebugger clouddeploy clouderrorreporting cloudfunctions cloudidentity
cloudkms cloudlocationfinder cloudnumberregistry cloudquotas cloudresourcesearch cloudscheduler cloudshell
cloudtasks cloudtrace composer config configdelivery connectgateway container containeranalysis datacatalog
dataflow datafusion datamigration datapipelines dataplex datapol dataproc dataprocgdc datastore datastream
deploymentmanager designcenter developerconnect discovery dns domains edgecontainer edgenetwork eventarc
eventarcpublishing faultinjectiontesting firebasedataconnect firestore geminicloudassist genomics gkebackup
gkehub gkemulticloud gkeonprem gkerecommender healthcare iamcredentials iap ids krmapihosting kubernetespolicy
language lifesciences logging looker lustre managedflink managedidentities managedkafka manager
marketplacesolutions mediaasset memcache memorystore messagestreams metastore ml modelarmor monitoring netapp
networkconnectivity networkmanagement networksecurity networkservices notebooks observability ondemandscanning
oracledatabase orglifecycle orgpolicy osconfig parallelstore parametermanager policyanalyzer policysimulator
policytroubleshooter privateca privilegedaccessmanager publicca pubsub pubsublite recaptchaenterprise
recommender redis remotebuildexecution replicapoolupdater run runapps runtimeconfig saasservicemgmt sasportal
sddc seclm securesourcemanager securitycenter securitycentermanagement securityposture servicedirectory
servicemanagement serviceregistry source spanner speech sql storagebatchoperations storageinsights stream
telcoautomation testing toolresults tpu transcoder transfer transferappliance vision vmmigration vmwareengine
vpcaccess workflowexecutions workflows workloadcertificate workstations
"""
NAMES = tuple(_TEXT.split())


def add_absent(router: Router) -> None:
    """Add the routes of all services that are not emulated."""
    router.add("*", f"/{PATH}/{{service}}/{{rest*}}", _refuse)
    router.add("*", f"/{PATH}/{{service}}/", _refuse)


def _refuse(request: HttpRequest) -> HttpResponse:
    service = request.parts["service"]
    message = (
        f"not emulated: `outlast local serve` has no service `{service}`. Nothing was sent to Google. The page"
        " docs/serve.md lists the services that it emulates."
    )
    # Clients repeat requests that a server answers with 501.
    raise ApiError(400, "failedPrecondition", message)
