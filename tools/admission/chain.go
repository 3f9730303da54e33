// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"reflect"

	v1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/discovery"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/openapi/openapitest"
)

// A chain is the two plugins of an API server that has some policies.
type chain struct {
	policies   []*policy
	mutating   *mutating.Plugin
	validating *validating.Plugin
}

func newChain(given *question, namespaces map[string]*corev1.Namespace) *chain {
	made, stored := &chain{policies: []*policy{}}, []runtime.Object{}
	for _, text := range given.Policies {
		object := decoded(text)
		stored = append(stored, object)
		switch one := object.(type) {
		case *v1.MutatingAdmissionPolicy:
			setDefaults(one.Spec.MatchConstraints)
			made.policies = append(made.policies, newMutating(one, given.Since))
			binding := &v1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: one.Name}}
			binding.Spec.PolicyName = one.Name
			stored = append(stored, binding)
		case *v1.ValidatingAdmissionPolicy:
			setDefaults(one.Spec.MatchConstraints)
			made.policies = append(made.policies, newValidating(one, given.Since))
			binding := &v1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: one.Name}}
			binding.Spec.PolicyName = one.Name
			binding.Spec.ValidationActions = []v1.ValidationAction{v1.Deny, v1.Audit}
			stored = append(stored, binding)
		}
	}
	for _, one := range namespaces {
		stored = append(stored, one)
	}
	made.start(stored)
	return made
}

// setDefaults does it as the API server does when a policy is created.
func setDefaults(given *v1.MatchResources) {
	everything, scope, equivalent := &metav1.LabelSelector{}, v1.AllScopes, v1.Equivalent
	given.NamespaceSelector = cmp.Or(given.NamespaceSelector, everything)
	given.ObjectSelector = cmp.Or(given.ObjectSelector, everything)
	given.MatchPolicy = cmp.Or(given.MatchPolicy, &equivalent)
	for _, rules := range [][]v1.NamedRuleWithOperations{given.ResourceRules, given.ExcludeResourceRules} {
		for i := range rules {
			rules[i].Scope = cmp.Or(rules[i].Scope, &scope)
		}
	}
}

func (c *chain) start(stored []runtime.Object) {
	var err error
	c.mutating, err = mutating.NewPlugin(nil)
	must(err)
	c.validating, err = validating.NewPlugin(nil)
	must(err)
	c.mutating.SetEnabled(true)
	clients := client{fake.NewSimpleClientset(stored...)}
	factory := informers.NewSharedInformerFactory(clients, 0)
	starter := initializer.New(clients, dynamicfake.NewSimpleDynamicClient(scheme.Scheme), factory, authorizerfactory.NewAlwaysAllowAuthorizer(),
		utilfeature.DefaultFeatureGate, compatibility.DefaultBuildEffectiveVersion(), make(chan struct{}), testrestmapper.TestOnlyStaticRESTMapper(scheme.Scheme))
	for _, plugin := range []admission.Interface{c.mutating, c.validating} {
		starter.Initialize(plugin)
		must(plugin.(admission.InitializationValidator).ValidateInitialization())
	}
	factory.Start(make(chan struct{}))
}

func (c *chain) costs(given admission.Attributes, namespaces map[string]*corev1.Namespace) map[string]map[string]int64 {
	found := map[string]map[string]int64{}
	attributes, err := admission.NewVersionedAttributes(given, given.GetKind(), things)
	must(err)
	for _, one := range c.policies {
		found[one.Name] = one.costs(attributes, namespaces[given.GetNamespace()])
	}
	return found
}

// A client has the schemas of Kubernetes' own test data: core, apps and batch.
type client struct{ *fake.Clientset }

func (c client) Discovery() discovery.DiscoveryInterface { return schemas{c.Clientset.Discovery()} }

type schemas struct{ discovery.DiscoveryInterface }

func (schemas) OpenAPIV3() openapi.Client { return openapitest.NewEmbeddedFileClient() }

var things = interfaces{admission.NewObjectInterfacesFromScheme(scheme.Scheme)}

// The API server has an internal version of each type, and defaults: client-go has neither.
type interfaces struct{ admission.ObjectInterfaces }

func (i interfaces) GetObjectConvertor() runtime.ObjectConvertor {
	return convertor{i.ObjectInterfaces.GetObjectConvertor()}
}

func (interfaces) GetObjectDefaulter() runtime.ObjectDefaulter { return defaulter{} }

type convertor struct{ runtime.ObjectConvertor }

func (c convertor) Convert(in, out, context any) error {
	if reflect.TypeOf(in) != reflect.TypeOf(out) {
		return c.ObjectConvertor.Convert(in, out, context)
	}
	reflect.ValueOf(out).Elem().Set(reflect.ValueOf(in.(runtime.Object).DeepCopyObject()).Elem())
	return nil
}

type defaulter struct{}

func (defaulter) Default(runtime.Object) {}
